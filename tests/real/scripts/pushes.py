import torch

import shoal

if __name__ == "__main__":
    context = shoal.init()
    client = context.client
    client.create_table(shoal.TableSpec("w", 8))
    for _ in range(context.resumed_at, 6):
        client.push("w", torch.ones(8)).wait()
        client.advance()
