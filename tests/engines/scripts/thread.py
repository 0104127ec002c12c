import threading

import torch

import shoal

found = []
thread = threading.Thread(target=lambda: found.append(shoal.init()))
thread.start()
thread.join()
with found[0] as context:
    context.client.create_table(shoal.TableSpec("w", 4))
    context.client.push("w", torch.ones(4)).wait()
    print(context.client.pull("w").wait().tolist())
