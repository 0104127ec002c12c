"""The checker of checkpoints: the files of a clock must be a consistent cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from shoal.keys import slot_of, tiles
from shoal.protocol.machine import Save
from shoal.protocol.scheduler.leases.ledger import Leases
from shoal.protocol.scheduler.leases.log import LeaseLog, LogEntry
from shoal.simulation.checkers.history import violated
from shoal.simulation.plan import BATCHES, EPOCHS, STAMP_ROWS
from shoal.tables.snapshots import overlaid


class Cuts:
    """The rows that servers have saved, by clock and shard."""

    def __init__(self) -> None:
        self._logged: dict[int, int] = {}  # when the last file of a clock was written
        self._saved: defaultdict[int, dict[tuple[str, int], Save]] = defaultdict(dict)

    def add(self, save: Save, logged: int) -> None:
        """Add a file that was written when the lease log had `logged` entries."""
        self._logged[save.clock] = logged
        if save.spec.group:
            raise violated("cut", f"{save.spec.name} uses other clocks than checkpoints")
        key = save.spec.name, save.rows.start
        if save.since >= 0:
            state = overlaid(self._saved[save.since][key].state, save.state)
            save = replace(save, state=state)
        self._saved[save.clock][key] = save

    def check(self, incarnations: int, acknowledged: Mapping[int, int], atomic: bool) -> int:
        """Check `cut`: every file of a clock has all rounds below it, and no later one.

        Return the number of complete checkpoints.

        incarnations:  the number of keys of a clock in the ledger
        acknowledged:  the clock of each acknowledged push
        atomic:        whether no push can be on some servers only
        """
        found = 0
        for clock, saved in sorted(self._saved.items()):
            stamps = [each for (name, _), each in saved.items() if name == "stamp"]
            if stamps and tiles(sorted(each.rows for each in stamps), stamps[0].spec.keys.stop):
                found += 1
                values = {float(v) for each in stamps for v in each.state["rows"].flatten()}
                if atomic and len(values) > 1:
                    raise violated("cut", f"the stamps of clock {clock} differ: {sorted(values)}")
            for (name, _), each in saved.items():
                if name == "ledger":
                    pushed = _pushed(each)
                    late = [key for key in pushed if key // incarnations >= clock]
                    if late:
                        raise violated("cut", f"clock {clock} of {each.rows} has pushes {late}")
                    lacks = [
                        key
                        for key, at in acknowledged.items()
                        if at < clock and key not in pushed and _place(each, key) in each.rows
                    ]
                    if lacks:
                        raise violated("cut", f"clock {clock} of {each.rows} lacks {lacks}")
        return found

    def check_planned(self, planned: Collection[int]) -> int:
        """Check `planned`: a checkpoint that was asked for is complete, if no server came or went.

        Return the number of these checkpoints.
        """
        for clock in planned:
            parts = [each for (name, _), each in self._saved[clock].items() if name == "stamp"]
            if not tiles(sorted(each.rows for each in parts), STAMP_ROWS):
                raise violated("planned", f"checkpoint {clock} was asked for, and has {parts}")
        return len(planned)

    def check_leases(self, entries: Sequence[LogEntry], unsure: set[int]) -> int:
        """Check `lease log`: a checkpoint has just the batches done by its clock, as the log says.

        The log counts as it was when the checkpoint was written: both may be all that is left.
        Return the number of checkpoints.

        unsure:  the batches whose push may be lost, or may count although it has failed
        """
        found = 0
        for clock, saved in sorted(self._saved.items()):
            parts = [each for (name, _), each in saved.items() if name == "harvest"]
            if not parts or not tiles(sorted(each.rows for each in parts), EPOCHS * BATCHES):
                continue
            found += 1
            log = LeaseLog(entries[: self._logged[clock]])
            undone = Leases(log.as_of(clock, EPOCHS)).undone()
            said = {epoch * BATCHES + batch for epoch, batch in undone}
            for each in parts:
                for row, times in enumerate(each.state["rows"].flatten().tolist(), each.rows.start):
                    if row not in unsure and (row in said) == bool(times):
                        what = "to be done" if row in said else "done"
                        text = f"batch {row} counts {times:g} times in checkpoint {clock}"
                        raise violated("lease log", f"{text}, and is {what} by the lease log")
        return found


def _place(save: Save, key: int) -> int:
    """Return the row or hash slot of a key of the ledger."""
    return slot_of(key) if save.spec.sparse else key


def _pushed(save: Save) -> set[int]:
    """Return the keys whose pushes are in saved rows of the ledger."""
    if save.spec.sparse:
        pushed = save.state["records"][:, 0] != 0
        return set(save.state["keys"][pushed].tolist())
    return {save.rows.start + int(at) for at in np.flatnonzero(save.state["rows"].numpy().ravel())}
