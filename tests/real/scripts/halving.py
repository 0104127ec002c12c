"""Registers an access method and uses it: halving.py [unguarded|late|known] [WORD...]

unguarded: trains at its top level, so that an import would, late: registers under its guard only,
known: registers none, and uses one that servers have
"""

import sys

import torch

import shoal

print("loaded as", __name__, sys.argv[1:], file=sys.stderr)


def halving(row, state, update, factor=0.5):
    for j in range(row.size):
        row[j] = factor * (row[j] + update[j])


def main():
    context = shoal.init()
    access = shoal.tables.Access("sum" if "known" in sys.argv else "halving")
    spec = shoal.TableSpec("t", row_shape=(2,), kind="sparse", access=access)
    context.client.create_table(spec)
    keys = torch.tensor([5], dtype=torch.uint64)
    print(context.client.push_pull("t", torch.full((1, 2), 8.0), keys).wait().tolist())


if "known" not in sys.argv and ("late" not in sys.argv or __name__ == "__main__"):
    shoal.access_method("halving")(halving)
if "unguarded" in sys.argv or __name__ == "__main__":
    main()
