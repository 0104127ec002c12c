"""Limits that members respect and enforce, and the types of message fields with these limits.

The limits in a field's type are checked when a message is decoded, before memory is allocated for
it: a message that breaks a limit is a `BadMessage`. Limits that depend on the receiver's state (its
rows, the roles of members) are checked by its `problem_of`.
"""

from __future__ import annotations

from sys import float_info
from typing import Annotated

from msgspec import Meta

IN_FLIGHT = 256  # requests that one worker may have in flight
# The largest distance between the sequence numbers of a worker's oldest and youngest requests: a
# server remembers as many outcomes. It is much larger than IN_FLIGHT, so that a request to a server
# that does not answer delays no requests to others before that server is declared dead.
WINDOW = 1 << 14
UNREAD_BYTES = 64 << 20  # bytes of answers that a worker may leave unread before its pulls wait
KEYS_MAX = 1 << 22  # keys of a sparse table in one part of a request
KEYS_TOLD_MAX = 1 << 30  # the same between servers: for a round of many workers, or for a handler
PARTS_MAX = 1 << 13  # entries of a list in a message, for example of the shards of all tables
# Parts of a request: each takes about 50 us, in which the server does nothing else.
PARTS_ASKED_MAX = 1 << 12
ORIGINS_MAX = 1 << 18  # pushes in one round
TABLES_MAX = 1 << 12  # tables of a run: messages between servers may name a shard of each
TABLES_BYTES_MAX = 2 << 20  # bytes of specifications and placements in a view
MEMBERS_MAX = 1 << 13  # members of a run: each view names all of them
WAITS_MAX = 200  # kinds of waits in a status reply
LONGEST_MAX = 10  # waits of one kind that a status reply names
SLOTS_MAX = 16  # slots of a table's access method
FRAGMENTS_TOLD_MAX = 1 << 16  # encoded fragments of one part: those of a table
KEY_LISTS_BYTES = 64 << 20  # bytes of lists of keys that a server keeps
REPEATS_MAX = 8  # times that a request's pushes may name a shard's rows; the same for its pulls
# Bytes of pushes of one worker that wait at a server for their rounds; one push may exceed it.
WAITING_BYTES = 4 << 30
ANSWER_BYTES = 4 << 30  # bytes of an answer of a custom table's handler
EARLY_MAX = 1 << 12  # operations of another server that arrive before their turn
BARRIERS_MAX = 1 << 10  # barriers of a worker group in which a member waits
RELEASED_MAX = 1 << 12  # barriers whose last generation the scheduler remembers
LISTED_MAX = 1 << 12  # pieces of a sum that a message names
NUMBER_MAX = 1 << 62  # also the clock of a worker that has ended

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]  # a count, a clock, a sequence number, a version
NumberOrNone = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]  # -1 for none
Rank = Annotated[int, Meta(ge=0, lt=1 << 16)]
RankOrAny = Annotated[int, Meta(ge=-1, lt=1 << 16)]
Seconds = Annotated[float, Meta(ge=0, le=float_info.max)]
Weight = Annotated[float, Meta(gt=0, le=float_info.max)]  # of a push in its round
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
Name = Annotated[str, Meta(max_length=1 << 10)]
Launch = Annotated[str, Meta(max_length=64)]  # the id of one start of a process; "" if unknown
Text = Annotated[str, Meta(max_length=1 << 22)]  # a reason
