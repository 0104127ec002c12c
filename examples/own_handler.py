"""A handler of one's own on the servers: lists of any lengths by key, and a message that counts."""

import numpy as np
import torch

import shoal


class Baskets:
    """What somebody has put into a basket, in order."""

    def __init__(self):
        self.rows = {}

    def push(self, pairs, cmd):  # cmd 0: put in; 1: empty the basket first
        for key, items in pairs:
            before = [] if cmd else self.rows.get(key, [])
            self.rows[key] = [*before, *items.tolist()]

    def pull(self, keys, cmd):
        return [self.rows.get(key, ()) for key in keys.tolist()]

    def request(self, head, body):  # how many baskets have `head` items or more
        return str(sum(len(items) >= head for items in self.rows.values())).encode()

    def save(self):  # with these two it has replicas, and a checkpoint has what is in it
        keys = sorted(self.rows)
        return shoal.tables.Pairs.of(
            np.array(keys, np.uint64), [self.rows[k] for k in keys], "int64"
        )

    def load(self, pairs):
        self.rows |= {key: items.tolist() for key, items in pairs}


shoal.handler("baskets", Baskets)


def main() -> None:
    context = shoal.init()
    client = context.client
    access = shoal.tables.Access("baskets")
    client.create_table(shoal.TableSpec("baskets", kind="custom", dtype="int64", access=access))
    mine = np.array([7, 1 << 60], np.uint64) + np.uint64(context.rank)  # keys are sorted
    client.push("baskets", torch.tensor([10, 11, 12, 20]), mine, lens=[3, 1]).wait()
    client.push("baskets", torch.tensor([13, 21]), mine).wait()  # one each
    items, lens = client.pull("baskets", mine).wait()
    assert items.tolist() == [10, 11, 12, 13, 20, 21], items
    assert lens.tolist() == [4, 2], lens
    client.barrier("everybody has pushed")
    counts = client.request("servers", 3, table="baskets").wait()
    assert sum(map(int, counts)) == context.world_size, counts
    print(f"worker {context.rank}: {lens.tolist()} items, {len(counts)} servers asked")


if __name__ == "__main__":
    main()
