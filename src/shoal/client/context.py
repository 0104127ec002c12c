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
    """This process's membership in a run. `shoal.init` returns it; a `with` block closes it.

    Attributes:
        rank: this worker's rank; it does not change during the run.
        world_size: number of workers: of `shoal run`, with those that have finished or are lost; of
            a run that was started otherwise, those that there were when this one joined.
        client: the connection to the cluster.
        tables_before: tables of the run when this worker joined, if it replaces one that has failed
            and continues at its clock; none for other workers.
        resumed_at: clock of the checkpoint from which the run was resumed; 0 for a new run.
        steps_before: the steps before the checkpoint, as (number of workers, steps) of each run
            before; none if that is unknown.
        on_worker_loss: what the run does when a worker is lost, as `shoal run --on-worker-loss`.
        began_at: the number of this worker's first step: `resumed_at`, and further where it
            replaces a worker that has failed.
        resumed_tables: names of the tables that the checkpoint has restored.
        models: number of models wrapped so far; it numbers their tables.
        embeddings: the modules with rows on servers that were made so far.
        run_dir: the run's folder, which `shoal.load_run` reads; without `shoal run` it is made when
            `shoal.log` is first called.
        defaults: what the run says of the script's optimizers.

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
    _training: list[ref[Any]] = field(default_factory=list)
    _closers: list[Callable[[], Any]] = field(default_factory=list)
    _closed: bool = False

    @cached_property
    def figure_log(self) -> FigureLog:
        """Records what `shoal.log` is called with."""
        log = FigureLog(self.run_dir, self.client.name, self.rank, self.began_at)
        self.at_close(log.close)
        return log

    def first_epoch(self, steps: Sized | int) -> int:
        """The first epoch that a loop has to do: the earlier ones were done before the checkpoint.

        A loop over `range(context.first_epoch(loader), epochs)` leaves them out, with all that it
        does in each epoch. A `shoal.Sampler` then begins with that epoch too, also where the loop
        does not call its `set_epoch`, and leaves out those batches of it that were done.

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
        """Call `optimizer.leave` with all such optimizers before this worker leaves the run well.

        They are called in the order of registration, those that are still in use.
        """
        self._training.append(ref(optimizer))

    def at_close(self, closer: Callable[[], Any]) -> None:
        """Call `closer` when the context is closed, in reverse order of registration."""
        self._closers.append(closer)

    def close(self) -> None:
        """Leave the run; further calls do nothing. It is called when the process exits.

        In a fork of the process it does nothing: the parent goes on.
        """
        if self._closed or self.client.in_fork:
            return
        self._closed = True
        try:
            training = [found for each in self._training if (found := each()) is not None]
            for each in training if not self.client.closed else ():
                each.leave(training)
        finally:
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
    """The context of this process.

    Raises:
        UsageError: `shoal.init()` was not called before, or in the process of which this is a fork.
    """
    if _Current.context is None:
        raise UsageError("this process has not joined a run: call shoal.init() first")
    _Current.context.client.check_process()
    return _Current.context


def joined() -> Context | None:
    """The context of this process; None before `shoal.init()` and after it was closed."""
    return _Current.context


def joined_once() -> bool:
    """Whether this process has been in a run, even if it has left it since."""
    return _Current.joined_once


def set_current(context: Context) -> None:
    """Make `context` the one of this process."""
    _Current.context = context
    _Current.joined_once = True
    set_membership(context.rank, context.world_size, context.began_at, context.steps_before)
