"""Context: this process's membership in a run, as `shoal.init()` returns it."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

from shoal.client.client import Client
from shoal.client.defaults import OptimizerDefaults
from shoal.data.sampler import first_epoch, set_membership
from shoal.errors import UsageError
from shoal.storage.figure_log import FigureLog


@dataclass
class Context:
    """This process's membership in a run.

    `shoal.init` returns it; a `with` block closes it.

    Attributes:
        rank: this worker's rank; it does not change during the run.
        world_size: the number of workers. Under `shoal run` it includes those that have finished
            or are lost; in a run that was started otherwise, it is the number when this one joined.
        client: the connection to the cluster.
        tables_before: the tables of the run when this worker joined, if it replaces a worker that
            has failed and continues at its clock; none for other workers.
        resumed_at: the clock of the checkpoint from which the run was resumed; 0 for a new run.
        steps_before: the steps before the checkpoint, as (number of workers, steps) of each
            earlier run; none if that is unknown.
        on_worker_loss: the policy for the loss of a worker, as `shoal run --on-worker-loss`.
        began_at: the number of this worker's first step: `resumed_at`, or a later one where it
            replaces a worker that has failed.
        resumed_tables: the names of the tables that the checkpoint has restored.
        models: the number of models wrapped so far; it numbers their tables.
        embeddings: the modules with rows on servers that were made so far.
        run_dir: the run's folder, which `shoal.load_run` reads; without `shoal run` it is made when
            `shoal.log` is first called.
        defaults: the settings of the run for the optimizers of the script.

    Example:
        >>> import shoal
        >>> context = shoal.init()
        >>> context.rank, context.world_size, context.resumed_at
        (0, 1, 0)
    """

    rank: int
    world_size: int
    client: Client
    resumed_at: int = 0
    resumed_tables: frozenset[str] = frozenset()
    tables_before: frozenset[str] = frozenset()
    models: int = 0
    embeddings: WeakSet[Any] = field(default_factory=WeakSet)
    began_at: int = 0
    steps_before: tuple[tuple[int, int], ...] = ()
    on_worker_loss: str = "stop"
    run_dir: Path = field(default_factory=Path)
    defaults: OptimizerDefaults = field(default_factory=OptimizerDefaults)
    _optimizers: list[ref[Any]] = field(default_factory=list)
    _in_use: dict[int, Any] = field(default_factory=dict)  # by id
    _closers: list[Callable[[], Any]] = field(default_factory=list)
    _closed: bool = False

    @cached_property
    def figure_log(self) -> FigureLog:
        """The log that records the figures of `shoal.log`."""
        log = FigureLog(self.run_dir, self.client.name, self.rank, self.began_at)
        self.at_close(log.close)
        return log

    def first_epoch(self, steps: Sized | int) -> int:
        """Return the first epoch that a loop has to do; the checkpoint has the earlier ones.

        A loop over `range(context.first_epoch(loader), epochs)` leaves out the earlier epochs, with
        all that it does in each of them. A `shoal.Sampler` then begins with that epoch too, also
        where the loop does not call `set_epoch`, and leaves out the epoch's batches that were done.

        Args:
            steps: this worker's DataLoader, or the number of steps that it takes in an epoch.

        Returns:
            The epoch of step `began_at`; 0 in a new run.

        Raises:
            InvalidValue: a negative number of steps.

        Example:
            >>> import shoal
            >>> context = shoal.init()
            >>> list(range(context.first_epoch(25), 3))
            [0, 1, 2]
        """
        return first_epoch(steps)

    def before_close(self, optimizer: Any) -> None:
        """Register an optimizer to `leave` before this worker leaves the run without an error.

        Living optimizers are called in the order of registration, each with all optimizers in use:
        the last one, and any that steps after the last one was registered. The context keeps the
        optimizers in use alive, so that garbage collection does not change the exchanges.
        """
        self._optimizers.append(ref(optimizer))
        self._in_use = {id(optimizer): optimizer}

    def stepped(self, optimizer: Any) -> None:
        """Note that an optimizer is in use."""
        self._in_use[id(optimizer)] = optimizer

    def at_close(self, closer: Callable[[], Any]) -> None:
        """Register `closer`, to be called at the close in reverse order of registration."""
        self._closers.append(closer)

    def close(self) -> None:
        """Leave the run; further calls do nothing.

        It is called when the process exits. In a fork of the process it does nothing: the parent
        goes on.
        """
        if self._closed or self.client.in_fork:
            return
        self._closed = True
        try:
            living = [found for each in self._optimizers if (found := each()) is not None]
            for each in living if not self.client.closed else ():
                each.leave([*self._in_use.values()])
        finally:
            self._in_use.clear()
            if _Current.context is self:
                _Current.context = None
                set_membership(0, 1)
            self.client.close()
            for closer in reversed(self._closers):
                closer()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is not None:
            self.client.fail(error)
        self.close()


class _Current:
    context: Context | None = None
    joined_once = False


def current() -> Context:
    """Return the context of this process.

    Raises:
        UsageError: `shoal.init()` was not called, or it was called before this process was forked.
    """
    if _Current.context is None:
        raise UsageError("this process has not joined a run: call shoal.init() first")
    _Current.context.client.check_process()
    return _Current.context


def joined() -> Context | None:
    """Return the context of this process; None before `shoal.init()` and after it was closed."""
    return _Current.context


def joined_once() -> bool:
    """Return whether this process has been in a run, even if it has left it since."""
    return _Current.joined_once


def set_current(context: Context) -> None:
    """Make `context` the context of this process."""
    _Current.context = context
    _Current.joined_once = True
    set_membership(context.rank, context.world_size, context.began_at, context.steps_before)
