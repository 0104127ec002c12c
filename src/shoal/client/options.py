"""Options of a client and of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict, get_args

import msgspec

from shoal.collective.base import Collective
from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.node.dropping import drops_of
from shoal.node.future import Future
from shoal.protocol.views import valid_group
from shoal.protocol.worker.options import OnTimeout
from shoal.tables.values import Lens

After = Sequence[Future] | Future


class PlannedCheckpoint(NamedTuple):
    """A checkpoint that servers will write, as `Client.checkpoint` returns it.

    Attributes:
        clock: the number of clocks, with those of the runs that this one continues, after which
            the checkpoint is complete: once every worker has finished them.
        folders: the checkpoint's folder, by host of the servers.
    """

    clock: int
    folders: dict[str, str]


class ClientOptions(msgspec.Struct, frozen=True):
    """The options with which a worker joins a run: the keyword arguments of `shoal.connect`.

    Attributes:
        token: the cluster's shared secret; empty for a cluster without one.
        tls: the folder of this process's certificate for tls:// addresses, as `shoal keys add`
            makes it; SHOAL_TLS if empty.
        init_timeout_s: the seconds to wait until the cluster is complete.
        sync_timeout_s: the seconds until an unanswered request is probed urgently; after twice this
            time the request fails with `SyncTimeout` or `RequestTimeout`. The time begins again
            while the workers that it waits for are alive and compute, evaluate or save. Below a
            second, their messages may come too late.
        on_timeout: the reaction to a time-out. "ask": as above. "wait": the request is probed
            again, and fails only with the run. "drop": as "wait", and exchanges with neighbours
            (`p2p`) go on without late neighbours; a scheduler with `--drop-after-s` drops workers
            that others wait for.
        collective: the way of sums over all workers (`all_reduce`, and strategies without servers):
            "ring" is Shoal's own ring allreduce; "mpi" is the allreduce of MPI, which needs mpi4py
            and workers that are the ranks of MPI.
        rank: the rank to ask for, -1 for any.
        listen: the address to listen at for other workers, such as tcp://HOST:0; the interface that
            leads to the scheduler, and any free port, if empty.
        probe_s: the seconds until an unanswered request is asked about; doubles with each time.
        drop_messages: the percentage of messages that this worker does not send, as PERCENT or
            PERCENT:SEED, for tests of what is lost.
        debug: whether writes to borrowed buffers are detected (one checksum per push).
        abort_on_error: whether an error in the `with` block of the client, or in the script of
            `shoal run`, ends this worker's group. False: this worker is lost, and the others go on.
        group: the worker group to join. Each group has clocks, barriers, allreduce, leases and
            ranks of its own. "" is the first group, for which the cluster was started; other groups
            attach to a running cluster.
        group_size: the number of workers that make an attached group complete; the group begins
            then.
        seed: the seed of the random bits that codecs draw.
        namespace: the prefix of this worker's table names. `w` is the table in the namespace, `/w`
            the first group's table. None stands for the group's name, "" for the first group's
            tables.

    Raises:
        InvalidValue: `group` or `namespace` is no valid name, `group_size` is below 1, `probe_s` is
            not above 0, or `on_timeout`, `collective` or `drop_messages` has none of its values.

    Example:
        >>> ClientOptions(group="eval").prefix
        'eval'

    References:
        Li et al. 2014, section 3.1 (worker groups and parameter namespaces).
    """

    token: str = ""
    tls: str = ""
    init_timeout_s: float = 60.0
    sync_timeout_s: float = 10.0
    on_timeout: OnTimeout = "ask"
    collective: Collective = "ring"
    rank: int = -1
    listen: str = ""
    probe_s: float = 0.5
    drop_messages: str = ""
    debug: bool = False
    abort_on_error: bool = True
    group: str = ""
    group_size: int = 1
    namespace: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (self.group, self.namespace or ""):
            if not valid_group(name):
                raise InvalidValue(
                    f"group and namespace names have at most 64 letters, digits, - and _: got "
                    f"{name!r}"
                )
        for name, kind in (("on_timeout", OnTimeout), ("collective", Collective)):
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(get_args(kind))
                raise InvalidValue(f"{name} is one of {known}, not {getattr(self, name)!r}")
        if self.group_size < 1:
            raise InvalidValue(f"group_size is at least 1, not {self.group_size}")
        if not self.probe_s > 0:
            raise InvalidValue(f"probe_s is above 0, not {self.probe_s}")
        drops_of(self.drop_messages)

    @property
    def prefix(self) -> str:
        """The effective namespace: `namespace`, or the group's name where that is None."""
        return self.group if self.namespace is None else self.namespace


class RequestOptions(TypedDict, total=False):
    """Options of every request.

    Attributes:
        after: the futures to be resolved before this request is sent.
        timeout_s: the seconds until the request is probed urgently; it fails after twice this time,
            also where it waits for a worker that computes. None for
            `ClientOptions.sync_timeout_s`.
    """

    after: After
    timeout_s: float | None


class PullOptions(RequestOptions, total=False):
    """Options of `Client.pull`.

    Attributes:
        cmd: a 64-bit integer for the handler of a custom table; 0 by default.
        exact: whether the rows come as they are, although the table has a `server_codec`.
    """

    cmd: int
    exact: bool


class UpdateOptions(RequestOptions, total=False):
    """Options of every push.

    Attributes:
        weight: the weight of this push in its round, > 0; 1 by default.
        lr: the learning rate of this push, >= 0; that of the table's schedule by default.
    """

    weight: float
    lr: float | None


class PushOptions(UpdateOptions, total=False):
    """Options of `Client.push`.

    Attributes:
        within: the range that a push with `keys` to a dense table covers. Rows of the range without
            a key keep their values and take part in the clock. The whole table by default.
        assign: whether the rows are written as they are, past the access method and the check for
            NaN and infinity.
        lens: the number of values of each key, (n,), for a custom table.
        cmd: a 64-bit integer for the handler of a custom table; 0 by default.
    """

    within: KeyRange | None
    assign: bool
    lens: Lens
    cmd: int


class PushPullOptions(UpdateOptions, total=False):
    """Options of `Client.push_pull`.

    Attributes:
        advance: whether this worker's clock ends between push and pull.
    """

    advance: bool
