"""The errors that Shoal raises, grouped by the side at fault.

    ShoalError
    ├── UsageError                 the caller's fault: a call, an option or a file is wrong
    │   ├── UnknownName            a name that no registry knows
    │   ├── InvalidValue           a value out of its range, or options that contradict each other
    │   │   └── NotFinite          a NaN or an infinity in an update
    │   ├── NotImportable          a function that another process cannot import
    │   ├── NotTrusted             a file that another user has written, or could have
    │   ├── PackageMissing         a package of an extra that is not installed
    │   ├── DataMissing            a data set that is in none of the searched places
    │   ├── DataCorrupt            a truncated or malformed file
    │   ├── UnknownFormat          a run's file in the format of another version of Shoal
    │   ├── AccessFailed           a user's access method or handler raised
    │   ├── WaitsForever           a wait that cannot end, such as a BSP push before `advance`
    │   └── BufferInUse            a borrowed buffer was written to before its acknowledgement
    ├── PeerError                  the cluster's fault
    │   ├── Refused                a peer refused a request, with its reason
    │   │   ├── JoinRefused        the scheduler refused a node
    │   │   │   └── ClusterFull    all members of the run have joined already
    │   │   └── RoundClosed        a push for a round that had closed
    │   ├── RequestTimeout         no answer in time: the outcome is unknown
    │   │   └── SyncTimeout        members that a request waited for did not arrive
    │   ├── JoinTimeout            the cluster was not complete in time
    │   ├── Cancelled              the caller withdrew the request
    │   ├── ProcessDied            a process of the run ended before its work did
    │   ├── RingBroken             the workers changed during an allreduce
    │   ├── RunAborted             the scheduler ended the run, with its reason
    │   │   ├── RangeLost          every server with a replica of some rows is gone
    │   │   ├── Dropped            the run goes on without this worker, which was too slow
    │   │   └── DeclaredDead       the run goes on without this process, which was silent
    │   ├── LeftAlone              a server was told to leave while its scheduler was gone
    │   └── HandshakeFailed        no greeting, or an unfinished one
    │       └── HandshakeRefused   wrong token, certificate, protocol version or job
    ├── WireError                  bytes that are no valid frame, or an address that cannot be used
    │   ├── BadMagic, BadVersion, BadLength, BadMessage, BadSharedMemory
    │   ├── BadContent, BadEncoding, PeerFault
    │   └── AddressInUse, AddressInvalid
    └── InvariantBroken            Shoal's fault: a state machine contradicted itself

Messages say the condition, what happened and what to do. All errors survive pickling, because they
travel from worker processes to the process that started them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class ShoalError(Exception):
    """Base class of all errors.

    Args:
        message: the condition, what happened and what to do.
        trace: the last events of the state machine that raised it, oldest first.

    Example:
        >>> print(ShoalError("server-0 does not answer", ["1.0 server-0: Request"]))
        server-0 does not answer
          the last events:
            1.0 server-0: Request
    """

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

    def __reduce__(self) -> tuple[type[ShoalError], tuple[object, ...]]:
        return type(self), (self.message, self.trace)


class UsageError(ShoalError):
    """The caller's fault: the request cannot be done as asked. Change the call."""


class UnknownName(UsageError):
    """A name that no registry knows. The message lists the known names."""


class InvalidValue(UsageError):
    """A value out of its range, or two that contradict each other. The message names both."""


class NotFinite(InvalidValue):
    """An update holds a NaN or an infinity. Nothing was sent.

    The message names the table and the key. Lower the learning rate, clip the gradient, or declare
    the table with nonfinite="zero" or "allow".
    """


class NotImportable(UsageError):
    """A function (a lambda, a local function) that another process cannot import.

    Define it at the top level of a module or script.
    """


class NotTrusted(UsageError):
    """A file or folder that another user of the machine owns, or could have written.

    What it says would be imported or continued. The message says what that is; look at it, then
    allow it with `--trust` (`trust=True`), or use a file of your own.
    """


class PackageMissing(UsageError):
    """A package of an extra that is not installed. The message has the line to type."""


class DataMissing(UsageError):
    """A data set or run that is in none of the searched places. The message lists them."""


class DataCorrupt(UsageError):
    """A truncated or malformed file. The message has the file and the offset or line."""


class UnknownFormat(UsageError):
    """A file that a run has left, in a format of another version of Shoal."""


class AccessFailed(UsageError):
    """A function of a user's access method or handler raised, with its exception's text.

    The rows of a dense or sparse table are as they were before the push. A custom table's handler
    keeps the changes that it made before it raised.
    """


class WaitsForever(UsageError):
    """A wait that can never end. The message says which call is missing before it.

    For instance a BSP push is acknowledged when its round closes, after this worker's `advance`.
    """


class BufferInUse(UsageError):
    """A buffer was written to between a push and its acknowledgement.

    Wait for the push's future first, or push a copy. Only `ClientOptions(debug=True)` detects it.
    """


class PeerError(ShoalError):
    """The cluster's fault: another member, or the connection to it, failed."""


class Refused(PeerError):
    """A peer refused a request. The message is its reason; the request was not applied."""


class JoinRefused(Refused):
    """The scheduler refused this node. The message is its reason."""


class ClusterFull(JoinRefused):
    """All members of the run have joined already.

    One of them may be dead and not detected yet: try again after the failure timeout.
    """


class RoundClosed(Refused):
    """A push arrived after its round had closed, and the named server did not count it.

    Where rounds close without some workers (`Quorum`, `Cover`) other servers may have. The worker's
    next push goes to the first round that is open.
    """


class RequestTimeout(PeerError):
    """No answer to a request in time. Whether it was applied is unknown.

    The message says what the request waited for; `shoal why` says it for the whole cluster.
    """


class SyncTimeout(RequestTimeout):
    """A request waited for members that did not arrive in time. The message names them.

    Whether a push was applied is unknown.
    """


class JoinTimeout(PeerError):
    """The cluster was not complete in time. The message names the missing members."""


class Cancelled(PeerError):
    """The caller withdrew the request. Whether it was applied is unknown."""


class ProcessDied(PeerError):
    """A process of the run ended before its work did.

    The message names the process, its exit status or signal, and its log.
    """


class RingBroken(PeerError):
    """The workers changed during an allreduce. Some may have the sum, others not.

    Repeat the step with the workers that are left.
    """


class RunAborted(PeerError):
    """The scheduler ended the run. The message is its reason."""


class RangeLost(RunAborted):
    """Every server with a replica of some rows is gone. The message names servers and rows.

    Resume from a checkpoint; `--replicas R` tolerates R - 1 failures.

    Example:
        >>> RangeLost("server-0 died with the last replica of w[0:64), v[8:16)").ranges
        ('w[0:64)', 'v[8:16)')
    """

    @property
    def ranges(self) -> tuple[str, ...]:
        """The lost rows as "table[first:last)"; empty if the run had no tables yet."""
        return tuple(re.findall(r"[^\s,]+\[[0-9]+:[0-9]+\)", self.message))


class Dropped(RunAborted):
    """The run goes on without this worker, for which the others waited too long."""


class DeclaredDead(RunAborted):
    """The run goes on without this process, which was not heard of for too long.

    It was stopped, swapped out, hung or out of reach. Other processes have taken over its work.
    Start it again so that it joins anew.
    """


class LeftAlone(PeerError):
    """A server that was told to leave has ended by itself, because its scheduler is gone."""


class HandshakeFailed(PeerError):
    """A peer sent no greeting, or an unfinished one: it may not be a Shoal node.

    Args:
        message: as of `ShoalError`.
        trace: as of `ShoalError`.
        reason: the reason in a word or two, by which a listener counts its callers.
    """

    def __init__(self, message: str = "", trace: Iterable[str] = (), reason: str = "") -> None:
        super().__init__(message, trace)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ShoalError], tuple[object, ...]]:
        return type(self), (self.message, self.trace, self.reason)


class HandshakeRefused(HandshakeFailed):
    """A peer has another token, authority, protocol version or job. Retrying does not help."""


class WireError(ShoalError):
    """Bytes that are no valid frame, or an address that cannot be used."""


class BadMagic(WireError):
    """A frame that does not start with Shoal's magic number."""


class BadVersion(WireError):
    """A frame of another protocol version. Use the same release on all nodes."""


class BadLength(WireError):
    """A frame whose length is out of bounds, or whose parts do not add up to it."""


class BadMessage(WireError):
    """A frame whose header is no known message."""


class BadContent(WireError):
    """A message that its receiver cannot accept from its sender. It has changed nothing.

    It names something that does not exist, or its sender has no right to send it.
    """


class BadEncoding(WireError):
    """Bytes that no codec has written: too few, too many, or a scale or a code that is none."""


class PeerFault(WireError):
    """The check of a peer's message raised an unexpected error. No state has changed."""


class BadSharedMemory(WireError):
    """Shared memory that was not announced, or that could be truncated while it is read."""


class AddressInvalid(WireError):
    """An address that is not inproc://NAME, unix:///PATH, tcp:// or tls://HOST:PORT."""


class AddressInUse(WireError):
    """An address on which another process listens."""


class InvariantBroken(ShoalError):
    """A state machine contradicted itself: a bug in Shoal. `trace` has its last events.

    Please report it with the trace.
    """


def by_name(name: str) -> type[ShoalError]:
    """Return the error class `name`; `ShoalError` if there is none, as for a newer peer's error."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, ShoalError) else ShoalError
