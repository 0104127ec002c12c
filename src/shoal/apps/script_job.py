"""ScriptRun: the options of `shoal run`, checked, and those of a run that is continued."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.train.checks import check_strategy
from shoal.engines.options import (
    Hyperparameters,
    Imports,
    Output,
    ScriptStrategy,
    Settings,
    Staleness,
    WorkerRole,
)
from shoal.errors import DataMissing, InvalidValue
from shoal.runs.job_file import SCRIPT, another_application, converted, inherited, load_run_job
from shoal.runs.options import RunOptions, check_staleness
from shoal.runs.trust import check_run, code_of, told
from shoal.storage.files import naming
from shoal.storage.run_folder import RunFolder
from shoal.strategies import USUAL, StrategyOptions, strategies
from shoal.strategies.settings import settings_of


class ScriptRun(RunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a script is run: the options of `shoal run`."""

    imports: Imports = ()
    strategy: ScriptStrategy = ""
    set: Settings = {}  # noqa: RUF012
    staleness: Staleness = 0
    optimizer_options: Hyperparameters = {}  # noqa: RUF012
    output: Output = "rank0"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.servers and (self.saves or self.resume):
            raise InvalidValue("checkpoints are the servers': add --servers 1 or more")
        if self.on_worker_loss == "reassign":
            raise InvalidValue(
                "--on-worker-loss reassign belongs to `shoal train`, which leases batches to its "
                "workers; a script takes leases itself: use shoal.leases, and --on-worker-loss drop"
            )
        check_staleness(self.staleness, self.strategy or USUAL)


class ScriptJob(ScriptRun, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job of a run of `shoal run`, as its folder has it.

    script:        the script, and its arguments
    command:       the command that runs the script again
    steps_before:  the steps up to the checkpoint that this run continues, as (workers, steps) of
                   each earlier run
    """

    script: tuple[str, ...] = ()
    command: str = ""
    steps_before: tuple[tuple[int, int], ...] = ()

    def steps_until(self, clock: int) -> tuple[tuple[int, int], ...]:
        """Return the steps up to a checkpoint of this run, in the form of `steps_before`."""
        return (*self.steps_before, (self.workers, clock - sum(n for _, n in self.steps_before)))


def job_of(run: Path) -> ScriptJob | None:
    """Return the job of a run; None if it is not a run of `shoal run`.

    Raises:
        DataCorrupt, UnknownFormat, InvalidValue: the job is not as that run wrote it
    """
    path = RunFolder(run).job
    values = load_run_job(run) if path.is_file() else {}
    if values.pop("application", "") != SCRIPT:
        return None
    with naming(path):
        return converted(values, ScriptJob)


def continued_script(
    command: Sequence[str],
    asked: Mapping[str, Any],
    says: Callable[[str], object] = print,
) -> tuple[Path, list[str], ScriptRun]:
    """Return the script, its arguments and the options of a run that continues another run.

    Options that are not asked for are those of that run, if it is a run of `shoal run`. Arguments
    belong to a script: if a script is given, the arguments are those given with it.

    Args:
        command: the script and its arguments, if they were given.
        asked: the options that were given, among them `resume`.
        says: the function that is told which code runs because that run has run it.

    Raises:
        NotTrusted: another user has left the run, or could have changed it.
        DataMissing: the script does not exist; or there is no run, and no script is given.
        DataCorrupt, UnknownFormat: as `job_of`.
        InvalidValue: as `job_of`, or options that contradict each other; or no script is given, and
            another command has to continue the run.
    """
    run = Path(asked["resume"])
    job = job_of(run)
    if job is None:
        if not command:
            raise another_application(run, load_run_job(run))
        return Path(command[0]), [*command[1:]], converted({**asked}, ScriptRun)
    before = msgspec.to_builtins(job)
    del before["script"], before["command"], before["steps_before"]
    taken = {name: value for name, value in before.items() if name not in asked}
    code = code_of(taken if command else {**taken, "script": job.script})
    check_run(run, code)
    if code:
        says(f"running {told(code)}, as {RunFolder(run).job} says")
    script, *args = command or job.script or ["no script"]
    if not Path(script).is_file():
        raise DataMissing(
            f"{script}, of which {run} was a run, is not there: name "
            f"the script: shoal run --resume {shlex.quote(str(run))} SCRIPT"
        )
    return Path(script), args, converted(inherited(before, asked), ScriptRun)


def check_script(how: ScriptRun) -> None:
    """Refuse a strategy and settings that cannot train in such a run; import no torch.

    Without a strategy and settings nothing is checked: the script may name any strategy, or none.

    Raises:
        UnknownName: no such strategy, or no such setting
        InvalidValue: a setting out of its range, or an option that the strategy does not support
    """
    if not how.strategy and not how.set:
        return
    name = how.strategy or USUAL
    if strategies[name].traits.replicates_batches:
        raise InvalidValue(
            f"strategy {name!r} has several workers train on the same batches, which `shoal train "
            "--redundancy` gives them; a script has batches of its own: choose another strategy"
        )
    options = StrategyOptions(staleness=how.staleness, workers=how.workers, settings=how.set)
    strategy = check_strategy(name, options, how)
    if not strategy.traits.uses_servers and (how.saves or how.resume):
        raise InvalidValue(
            f"strategy {name!r} has its parameters on workers, which checkpoints of a script do "
            "not have: leave out --checkpoint-every and --resume, and save them in the script"
        )


def check_settings(role: WorkerRole) -> None:
    """Refuse a strategy or settings that do not exist.

    Raises:
        UnknownName: no such strategy, or no such setting
        InvalidValue: a setting out of its range, or a staleness for a strategy without such a bound
    """
    kind = strategies[role.strategy or USUAL]
    settings_of(kind.name, kind.Settings, role.set)
    check_staleness(role.staleness, kind.name)
