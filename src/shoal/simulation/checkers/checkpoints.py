"""Checkpoints of a simulated run: what was written down of a clock has to be one cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from shoal.keys import slot_of, tiles
from shoal.protocol.machine import Save
from shoal.simulation.checkers.history import violated
from shoal.tables.snapshots import overlaid


class Cuts:
    """What servers have written down, by clock and arc."""

    def __init__(self) -> None:
        self._saved: defaultdict[int, dict[tuple[str, int], Save]] = defaultdict(dict)

    def add(self, save: Save) -> None:
        if save.spec.group:
            raise violated("cut", f"{save.spec.name} goes by other clocks than checkpoints do")
        key = save.spec.name, save.rows.start
        if save.since >= 0:
            state = overlaid(self._saved[save.since][key].state, save.state)
            save = replace(save, state=state)
        self._saved[save.clock][key] = save

    def check(self, clocks: int, acknowledged: Mapping[int, int], atomic: bool) -> int:
        """`cut`: of a clock everything has all rounds below it and no other. How many there are.

        clocks:        of a worker; a key of the ledger is incarnation * clocks + clock
        acknowledged:  the clock of each push that was
        atomic:        no push can be on some servers only
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
                    late = [key for key in pushed if key % clocks >= clock]
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


def _place(save: Save, key: int) -> int:
    """Where a key is, of all that the ledger's arcs are cut from."""
    return slot_of(key) if save.spec.sparse else key


def _pushed(save: Save) -> set[int]:
    """The keys of pushes that are in some rows of the ledger."""
    if save.spec.sparse:
        pushed = save.state["records"][:, 0] != 0
        return set(save.state["keys"][pushed].tolist())
    return {save.rows.start + int(at) for at in np.flatnonzero(save.state["rows"].numpy().ravel())}
