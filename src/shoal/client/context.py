"""Who this process is in the run that it has joined: what `shoal.init()` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.client.client import Client
from shoal.data.sampler import set_membership
from shoal.errors import UsageError


@dataclass
class Context:
    """
    rank, world_size:  of this worker; they do not change during the run
    client:            pushes, pulls, advances and barriers
    tables_before:     the tables of the run when this worker joined, if it replaces one that has
                       failed and continues at its clock; none for other workers
    resumed_at:        the clocks that are over, in the run that this one goes on with; 0 in others
    resumed_tables:    ... and the tables that begin with the rows that they had then
    """

    rank: int
    world_size: int
    client: Client
    resumed_at: int = 0
    resumed_tables: frozenset[str] = frozenset()
    tables_before: frozenset[str] = frozenset()
    models: int = 0
    _closers: list[Callable[[], Any]] = field(default_factory=list)
    _closed: bool = False

    def at_close(self, closer: Callable[[], Any]) -> None:
        self._closers.append(closer)

    def close(self) -> None:
        """Leave the run. The first call counts; it also happens when the process ends."""
        if self._closed:
            return
        self._closed = True
        if _Current.context is self:
            _Current.context = None
            set_membership(0, 1)
        self.client.close()
        for closer in reversed(self._closers):
            closer()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self.client.abort(f"{kind.__name__}: {error}"[:500])
        self.close()


class _Current:
    context: Context | None = None
    joined_once = False


def current() -> Context:
    """The context of this process.

    Raises:
        UsageError: before `shoal.init()`
    """
    if _Current.context is None:
        raise UsageError("this process has not joined a run: call shoal.init() first")
    return _Current.context


def joined() -> Context | None:
    """The context of this process, where it has one."""
    return _Current.context


def joined_once() -> bool:
    """Whether this process has been in a run, also where it has left it since."""
    return _Current.joined_once


def set_current(context: Context) -> None:
    _Current.context = context
    _Current.joined_once = True
    set_membership(context.rank, context.world_size)
