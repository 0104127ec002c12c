"""An access method of one's own on the servers: AdaGrad whose sums fade, and a count per row."""

import numpy as np
import torch

import shoal


@shoal.access_method("fading", state=lambda width: width + 1)
def fading(row, state, update, lr=0.1, decay=0.99, eps=1e-10):
    width = row.size
    state[width] += 1
    for j in range(width):
        g = update[j]
        s = decay * state[j] + g * g
        state[j] = s
        row[j] -= lr * g / (np.sqrt(s) + eps)


def main() -> None:
    context = shoal.init()
    client = context.client
    access = shoal.tables.Access("fading", {"lr": 0.5})
    client.create_table(shoal.TableSpec("rows", row_shape=(4,), kind="sparse", access=access))
    keys = np.array([3, 1 << 60, 7], np.uint64)
    gradients = torch.tensor([[1.0, -1.0, 2.0, -2.0]]).repeat(3, 1)
    rows = client.push_pull("rows", gradients, keys).wait()
    error = (rows + 0.5 * gradients.sign()).abs().max()
    print(f"worker {context.rank}: one step of size lr, to {error:.0e}")


if __name__ == "__main__":
    main()
