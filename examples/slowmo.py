"""A strategy of your own: SlowMo (Wang et al. 2020), local SGD with a slow momentum on the servers.

shoal train digits --workers 4 --strategy examples/slowmo.py:SlowMo
"""

from shoal.strategies.local_updates import LocalUpdates
from shoal.tables.spec import Access


class SlowMo(LocalUpdates):
    name = "slowmo"
    summary = "local SGD with slow momentum"

    def period(self, clock):
        return 8  # local steps between two exchanges

    def outer(self):
        return Access("sgd", {"lr": 1.0, "momentum": 0.6})
