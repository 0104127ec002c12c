"""Tables by hand: every worker adds 1 to every row and its rank to some, then all read the sum."""

import torch

import shoal

context = shoal.init()  # alone under python, one of several under `shoal run` or torchrun
client, workers = context.client, context.world_size
client.create_table(shoal.TableSpec("counts", rows=10_000))  # access method `sum`, asynchronous

whole = client.push("counts", torch.ones(10_000))
some = client.push("counts", torch.full((4,), float(context.rank)), [3, 1, 4, 9999])
mine = client.pull("counts", shoal.tables.KeyRange(0, 5), after=[whole, some]).wait()
assert (mine >= 1).all()  # its own pushes are in what a worker reads

client.barrier("everybody has pushed")
counts = client.pull("counts").wait()
ranks = sum(range(workers))
assert counts[9999] == workers + ranks
assert counts.sum() == 10_000 * workers + 4 * ranks
print(f"worker {context.rank} of {workers}: the sum is {counts.sum():.0f}, as it should be")
