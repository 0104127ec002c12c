"""Machines driven by hand: tiny views, a shard that a person can follow, and few words."""

from shoal.keys import KeyRange
from tests.protocol.rigs.chain import ROWS, Chain
from tests.protocol.rigs.machines import Rig, SchedulerRig, ServerRig, WorkerRig
from tests.protocol.rigs.shard import FakeShard
from tests.protocol.rigs.views import as_bytes, died, held_by, ints, table, view_of

__all__ = [
    "ROWS",
    "Chain",
    "FakeShard",
    "KeyRange",
    "Rig",
    "SchedulerRig",
    "ServerRig",
    "WorkerRig",
    "as_bytes",
    "died",
    "held_by",
    "ints",
    "table",
    "view_of",
]
