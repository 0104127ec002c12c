"""Limits that workers keep to and servers enforce."""

from __future__ import annotations

IN_FLIGHT = 256  # requests that one worker may have in flight
# Between the sequence numbers of its oldest request and the youngest: a server remembers so many
# outcomes. It is much larger than IN_FLIGHT, so that a request to a server that does not answer
# holds up no requests to others before that server is declared dead.
WINDOW = 1 << 14
UNREAD_BYTES = 64 << 20  # of answers that a worker has not read, before its pulls wait
KEYS_MAX = 1 << 22  # keys of a sparse table in one part of a request
