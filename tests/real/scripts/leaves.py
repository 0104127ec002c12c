import torch

import shoal

with shoal.init() as context:
    context.client.create_table(shoal.TableSpec("w", 4, merge="sum"))
    context.client.push("w", torch.ones(4)).wait()
print("left", context.rank)
