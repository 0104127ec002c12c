"""Bugs in how servers prepare for the next view, or continue without it."""

from msgspec.structs import replace

from shoal.protocol.scheduler.rows.rebalance import Moves
from shoal.protocol.scheduler.table_catalog import Openings
from shoal.protocol.scheduler.view_change import ViewChange
from shoal.protocol.server.view_change.adoption import ViewAdoption
from shoal.protocol.server.view_change.opening import ShardOpening
from shoal.protocol.server.view_change.thaw import Thaw
from tests.simulation.planted.patches import bug, instead

# ---------------------------------------------------------------------------- frozen servers


def _thaws_by_time(right):
    def thawed(self, out):
        if self.asks and self._view is not None:
            self._refused_by.update(self._awaited(self._view))
        return right(self, out)

    return thawed


thaws_by_time_out = bug(
    Thaw, "thawed", _thaws_by_time,
    "A frozen server that asks the others continues, whatever they answer.",
)  # fmt: skip
refused_view_is_adopted = bug(
    ViewAdoption, "refused", instead(False),
    "A server adopts a view from the scheduler that it has refused.",
)  # fmt: skip


def _all_at_once(right):
    def offer(self, view, now, out):
        self._make(view, now, out)

    return offer


view_is_told_before_it_is_adopted = bug(
    ViewChange, "_offer", _all_at_once,
    "All members are told of a view at once, before a server of the one before has adopted it.",
)  # fmt: skip


def _of_the_journal(right):
    def catch_up(self, promises, now, out):
        right(self, [replace(promise, adopted=None) for promise in promises], now, out)

    return catch_up


successor_of_the_journal = bug(
    ViewChange, "_catch_up", _of_the_journal,
    "The next view is made of the scheduler's own view, not of the newest that was adopted.",
)  # fmt: skip


# ---------------------------------------------------------------------------- opening shards

unopened_shards_are_placed = bug(
    Moves, "takes", instead(True),
    "A view gives a server rows of a shard that it has not opened, or cannot.",
)  # fmt: skip
placed_shards_stay_open = bug(
    Openings, "placed", instead(None),
    "A view has a transfer begin anew into a shard that an earlier view has used up.",
)  # fmt: skip


def _of_any_view(right):
    def asked(self, message, out):
        right(self, replace(message, view=(0, 0)), out)

    return asked


list_comes_before_its_view = bug(
    ShardOpening, "asked", _of_any_view,
    "A list of shards drops what a view takes that is not here yet.",
)  # fmt: skip
