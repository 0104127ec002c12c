"""Limits that members keep to and enforce, and the types of message fields that have them.

What a field's type says is checked when a message is decoded, before memory is taken for it: a
message that breaks a limit is a `BadMessage`. What depends on a receiver's state (which rows are
here, the roles of members) is looked at by the receiver's `problem_of`.
"""

from __future__ import annotations

from sys import float_info
from typing import Annotated

from msgspec import Meta

IN_FLIGHT = 256  # requests that one worker may have in flight
# Between the sequence numbers of its oldest request and the youngest: a server remembers so many
# outcomes. It is much larger than IN_FLIGHT, so that a request to a server that does not answer
# holds up no requests to others before that server is declared dead.
WINDOW = 1 << 14
UNREAD_BYTES = 64 << 20  # of answers that a worker has not read, before its pulls wait
KEYS_MAX = 1 << 22  # keys of a sparse table in one part of a request
KEYS_TOLD_MAX = 1 << 30  # the same between servers: of a round of many workers, of a handler
PARTS_MAX = 1 << 13  # of a list in a message, such as of members, or shards of all tables
# Of a request: each takes some 50 us, and nobody else is served meanwhile.
PARTS_ASKED_MAX = 1 << 12
ORIGINS_MAX = 1 << 18  # pushes in one round
TABLES_MAX = 1 << 12  # of a run: messages between servers may name a shard of each
TABLES_BYTES_MAX = 2 << 20  # of specifications and placements in a view
MEMBERS_MAX = 1 << 13  # of a run: each view names all of them
WAITS_MAX = 200  # kinds of waits that a status tells
LONGEST_MAX = 10  # waits of a kind that it names
SLOTS_MAX = 16  # of a table's access method
REPEATS_MAX = 8  # times that a request's pushes may name a shard's rows, and its pulls
# Pushes of one worker that a server keeps until their rounds close; one push may exceed it alone.
WAITING_BYTES = 4 << 30
ANSWER_BYTES = 4 << 30  # of a custom table's handler
EARLY_MAX = 1 << 12  # operations of another server that came before their turn
BARRIERS_MAX = 1 << 10  # barriers of a worker group in which somebody waits
RELEASED_MAX = 1 << 12  # barriers whose last generation the scheduler remembers
LISTED_MAX = 1 << 12  # pieces of a sum that a message names
NUMBER_MAX = 1 << 62  # also the clock of a worker that has ended

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]  # a count, a clock, a sequence number, a version
NumberOrNone = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]  # -1 for none
Rank = Annotated[int, Meta(ge=0, lt=1 << 16)]
RankOrAny = Annotated[int, Meta(ge=-1, lt=1 << 16)]
Seconds = Annotated[float, Meta(ge=0, le=float_info.max)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
Name = Annotated[str, Meta(max_length=1 << 10)]
Text = Annotated[str, Meta(max_length=1 << 22)]  # a reason
