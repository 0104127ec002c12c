"""Every error that Shoal raises, and whose fault each one is.

    ShoalError
    ├── UsageError                 your fault: the call, the flag or the file is wrong
    │   ├── UnknownName            a name that no registry knows
    │   ├── InvalidValue           a value out of its range, or flags that contradict each other
    │   │   └── NotFinite          a NaN or an infinity in an update (table and key)
    │   ├── NotImportable          a factory that another process could not import
    │   ├── DataMissing            a data set that is nowhere that was looked
    │   ├── DataCorrupt            a file that is not what it says (file, offset or line)
    │   ├── UnknownFormat          a file of a run that another version of Shoal has written
    │   ├── AccessFailed           an access method of the user's raised; its table is as it was
    │   ├── WaitsForever           a wait that cannot end, such as a BSP push before `advance`
    │   └── BufferInUse            a borrowed buffer was written to before its acknowledgement
    ├── PeerError                  the cluster's fault
    │   ├── Refused                a peer said no, with its reason
    │   │   ├── JoinRefused
    │   │   │   └── ClusterFull    ... because all have joined, or are taken to be there
    │   │   └── RoundClosed        a push for a round that had closed
    │   ├── RequestTimeout         a request ran out of time: its outcome is unknown
    │   │   └── SyncTimeout        ... because named members did not arrive
    │   ├── JoinTimeout            the scheduler did not answer, or members were missing
    │   ├── Cancelled              the caller withdrew the request
    │   ├── ProcessDied            a process of the run ended before its work did
    │   ├── RingBroken             the workers changed in the middle of an allreduce
    │   ├── RunAborted             the scheduler ended the run, with its reason
    │   │   ├── RangeLost          ... because all servers that had some rows are gone
    │   │   └── Dropped            ... for this worker: the others waited for it too long
    │   └── HandshakeFailed        no greeting, or an unfinished one
    │       └── HandshakeRefused   wrong token, version or job
    ├── WireError                  bytes that are not ours
    │   ├── BadMagic, BadVersion, BadLength, BadMessage, BadSharedMemory
    │   └── AddressInUse, AddressInvalid
    └── InvariantBroken            our fault: a machine contradicted itself

All survive pickling, because they travel from worker processes to the one that started them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class ShoalError(Exception):
    """The base of every error here. Its text says what to do; `trace` holds the last events."""

    def __init__(self, message: str = "", trace: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.trace = tuple(trace)

    def __str__(self) -> str:
        if not self.trace:
            return self.message
        return "\n".join(
            [self.message, "  the last events:", *(f"    {line}" for line in self.trace)]
        )

    def __reduce__(self) -> tuple[type[ShoalError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.message, self.trace)


class UsageError(ShoalError):
    """What the caller asked for cannot be done as asked."""


class UnknownName(UsageError):
    """A name that no registry knows; the text lists the known ones."""


class InvalidValue(UsageError):
    """A value out of its range, or two that contradict each other."""


class NotFinite(InvalidValue):
    """An update holds a NaN or an infinity; the text has the table and the key. None was sent."""


class NotImportable(UsageError):
    """A factory (a lambda, a local function) that another process could not import."""


class DataMissing(UsageError):
    """A data set that is in none of the places that were looked at; the text lists them."""


class DataCorrupt(UsageError):
    """A data file that is truncated or malformed; the text has file and offset or line."""


class UnknownFormat(UsageError):
    """A file that a run has left, in a format of another version of Shoal."""


class AccessFailed(UsageError):
    """A function of an access method raised. The rows are as they were before the request."""


class WaitsForever(UsageError):
    """A wait that could never end."""


class BufferInUse(UsageError):
    """A buffer that a push has borrowed was written to before the acknowledgement."""


class PeerError(ShoalError):
    """Another member of the cluster, or the way to it, failed."""


class Refused(PeerError):
    """A peer answered no; the text is its reason."""


class JoinRefused(Refused):
    """The scheduler refused this node."""


class ClusterFull(JoinRefused):
    """All have joined that this run is to have; one of them may be dead, and not taken for it."""


class RoundClosed(Refused):
    """A push arrived for a round that had already closed, and was not counted."""


class RequestTimeout(PeerError):
    """A request ran out of time. Whether it was applied is unknown."""


class SyncTimeout(RequestTimeout):
    """A request waited for members that did not arrive in time; the text names them."""


class JoinTimeout(PeerError):
    """The cluster was not complete in time; the text names who is missing."""


class Cancelled(PeerError):
    """The caller withdrew the request. Whether it was applied is unknown."""


class ProcessDied(PeerError):
    """A process of the run ended before its work did; the text names it and says how."""


class RingBroken(PeerError):
    """The workers changed in the middle of an allreduce; some may have the sum, others not."""


class RunAborted(PeerError):
    """The scheduler ended the run; the text is its reason."""


class RangeLost(RunAborted):
    """Every server that had some rows is gone, and the rows with them; the text names both.

    >>> RangeLost("server-0 died with the last replica of w[0:64), v[8:16)").ranges
    ('w[0:64)', 'v[8:16)')
    """

    @property
    def ranges(self) -> tuple[str, ...]:
        """The rows, as table[first:last); none where the run had no table yet."""
        return tuple(re.findall(r"[^\s,]+\[[0-9]+:[0-9]+\)", self.message))


class Dropped(RunAborted):
    """The run goes on without this worker, for which the others had to wait too long."""


class HandshakeFailed(PeerError):
    """The other side did not greet as a member does."""


class HandshakeRefused(HandshakeFailed):
    """The other side does not share our token, protocol version or job, now or later."""


class WireError(ShoalError):
    """Bytes or an address that cannot be understood."""


class BadMagic(WireError):
    """A frame that does not begin as ours do."""


class BadVersion(WireError):
    """A frame of another protocol version."""


class BadLength(WireError):
    """A frame that claims a length out of bounds, or whose parts do not add up."""


class BadMessage(WireError):
    """A frame whose header is not a message that we know."""


class BadSharedMemory(WireError):
    """Shared memory that could vanish while it is read, or that nobody announced."""


class AddressInvalid(WireError):
    """An address that is not inproc://NAME, unix:///PATH or tcp://HOST:PORT."""


class AddressInUse(WireError):
    """An address that another process listens on."""


class InvariantBroken(ShoalError):
    """A machine contradicted itself. This is a bug in Shoal; the story tells how it came."""


def by_name(name: str) -> type[ShoalError]:
    """The error class called `name`, or `ShoalError` where there is none (a newer peer's)."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, ShoalError) else ShoalError
