"""Comparison: a job, and the axes along which it varies. TOML files and flags share this schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Annotated, Any

import msgspec
from msgspec.structs import fields as fields_of

from shoal.engines.options import option
from shoal.errors import InvalidValue
from shoal.registry import nearest, unknown
from shoal.runs.application import compared
from shoal.runs.job import JobSpec, from_mapping
from shoal.runs.job_file import converted
from shoal.runs.options import RunOptions
from shoal.runs.simulated_time import SimulatedTime
from shoal.runs.trust import CODE
from shoal.storage.files import FORMAT, FORMAT_KEY
from shoal.strategies import Strategy, strategies

BANDWIDTH_MAX = 1_000_000  # Mbit/s
BANDWIDTH = "bandwidth"  # an axis that is no field of a job
SET = "set."  # in front of a strategy's setting
AXES = (
    *("strategy", "model", "workers", "servers", "replicas", "redundancy"),
    *(
        "staleness",
        "apply_at",
        "batch_size",
        "optimizer",
        "lr",
        "codec",
        "server_codec",
        "epochs",
        BANDWIDTH,
    ),
)
RUNS_MAX = 10_000
FOLDER_LENGTH = 100
# axes that do not apply to a cell without servers
OF_SERVERS = ("servers", "replicas", "server_codec")
WEIGHTS = ("model", "layers", "init", "dtype")  # fields that determine a model's initial weights
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One point of a comparison's grid.

    Attributes:
        name: the strategy, and the values that differ between cells.
        values: the value on each axis, also on an axis with a single value.
        fields: the fields of the cell's job, without the seed.
        bandwidth: the bandwidth of every host, in Mbit/s; 0: no limit.
    """

    name: str
    values: Values
    fields: Values
    bandwidth: float = 0.0

    def job(self, seed: int, out: str) -> JobSpec:
        """Return the job of this cell with one of the seeds.

        Raises:
            InvalidValue, UnknownName: a field has a wrong value.
        """
        return from_mapping({**self.fields, "seed": seed, "out": out})

    @property
    def folder(self) -> str:
        """The name of the cell's folder, which is unique also where names of cells are alike."""
        plain = "".join(c if c.isalnum() or c in "=.-_" else "-" for c in self.name)
        if plain == self.name.replace(" ", "-") and len(plain) <= FOLDER_LENGTH:
            return plain
        digest = blake2b(self.name.encode(), digest_size=4).hexdigest()
        return f"{plain[:FOLDER_LENGTH]}-{digest}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job, the axes along which it varies, and how many seeds each combination has.

    Attributes:
        application: the application whose runs are compared, a name in `COMPARED`; "" for training
            jobs. `job` and `grid` have fields of its options then, and cells are all combinations:
            an option that another one does not use is not left out.
        job: the fields of `JobSpec` that all cells share.
        grid: the values of each axis. An axis that a strategy does not have, such as the staleness
            of ssp, is left out for that strategy. `set` has axes of settings, such as
            {tau: [1, 4]}; "tau,n_push" is one axis of two settings.
        strategies: the fields of each strategy's cells that differ from `job`, such as its rate.
        seeds: the number of runs of each cell, with one seed each.
        simulated: whether to train in the simulator.
        simulation: the parameters of simulated time.
        measured: the seconds a batch that were measured here, by model and size of a batch.
        codecs: the same of codecs: the seconds to encode and to decode a value, and its bytes.
    """

    # fmt: off
    application: str = ""
    job: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    strategies: dict[str, dict[str, Any]] = {}
    seeds: Annotated[int, option("Comparison", "runs of each combination, with one seed each", ge=1, le=1000)] = 1
    simulated: Annotated[bool, option("Comparison", "train in the simulator, on its clock, with the seconds of a batch as measured here or given")] = False
    simulation: SimulatedTime = SimulatedTime()
    measured: dict[str, float] = {}
    codecs: dict[str, tuple[float, float, float]] = {}
    # fmt: on

    def __post_init__(self) -> None:
        if not self.simulated and self.simulation != SimulatedTime():
            usual = msgspec.structs.asdict(SimulatedTime())
            given = msgspec.structs.asdict(self.simulation)
            names = ", ".join(name for name in usual if given[name] != usual[name])
            raise InvalidValue(f"{names}: real processes take their own time; add --simulated")
        schema = self.schema  # refuses an unknown application
        if schema is not JobSpec and (self.simulated or self.strategies):
            raise InvalidValue(
                f"simulated time and [strategies.NAME] belong to training jobs, not to "
                f"{self.application}"
            )

    @property
    def schema(self) -> type[RunOptions]:
        """The class of the options of its runs."""
        return compared(self.application).schema if self.application else JobSpec

    @property
    def source(self) -> str:
        """The name of the data, for titles."""
        if not self.application:
            return str(self.job.get("data", "digits"))
        data = self.job.get(compared(self.application).data) or "sample"
        return str(data if isinstance(data, str) else data[0])

    def code(self) -> Iterator[dict[str, Any]]:
        """Yield each value that may name code, as {field: value}; import none of it."""
        for fields in (self.job, self.grid, *self.strategies.values()):
            for field in (*CODE, "codec"):
                values = fields.get(field, [])
                for value in values if isinstance(values, list) else [values]:
                    yield {field: value}
        yield from ({"strategy": name} for name in self.strategies)

    def seeds_of(self) -> range:
        """Return the seeds, beginning with the job's."""
        [usual] = (each.default for each in fields_of(self.schema) if each.name == "seed")
        given = self.job.get("seed", usual)
        first = from_mapping({"seed": given}).seed
        return range(first, first + self.seeds)

    def cells(self) -> list[Cell]:
        """Return every combination of the values, in the order of the axes.

        Raises:
            InvalidValue: an axis has no values, or no strategy has it
            UnknownName: there is no such axis, or no such strategy
        """
        if self.application:
            return self._checked(_product(self.application, self.job, self.grid))
        axes = self._axes()
        names = axes.pop("strategy", None) or [self.job.get("strategy", "sync")]
        for name in (*self.strategies, *names):
            if not isinstance(name, str):
                raise InvalidValue(f"strategy: expected a name, got {name!r}")
            strategies[name]
        if left := set(self.strategies) - set(names):
            raise InvalidValue(f"[strategies.{left.pop()}]: the grid does not have this strategy")
        common = self._common()
        for axis in (*axes, *common):
            if not any(applies(axis, name) for name in names):
                wrong, whose = axis.removeprefix(SET), _whose(axis)
                known = [
                    f"{strategy_label(name)}.{each}" if whose else each
                    for name in names
                    for each in strategies[name].Settings.__struct_fields__
                ]
                raise InvalidValue(
                    f"none of {', '.join(names)} has {wrong!r}{nearest(wrong, known)}"
                )
        cells: dict[str, Cell] = {}
        for name in names:
            own = own_axes(axes, name)
            for chosen in product(*own.values()):
                cell = self._cell(name, dict(zip(own, chosen, strict=True)), own, common)
                if cells.get(cell.name, cell) != cell:
                    raise InvalidValue(f"two cells have the name {cell.name!r}: rename one's class")
                cells[cell.name] = cell
        return self._checked([*cells.values()])

    def _checked(self, cells: list[Cell]) -> list[Cell]:
        """Return the cells of a comparison that is not too large."""
        runs = len(cells) * self.seeds
        if runs > RUNS_MAX:
            raise InvalidValue(
                f"a comparison has {RUNS_MAX} runs at most, not {len(cells)} cells x {self.seeds} seeds"
            )
        return cells

    def _cell(
        self, name: str, values: dict[str, Any], axes: Mapping[str, Sequence[Any]], common: Values
    ) -> Cell:
        kept = {field: value for field, value in common.items() if applies(field, name)}
        of_strategy = self.strategies.get(name, {})
        fields: dict[str, Any] = {**kept, **of_strategy, "strategy": name}
        settings = {
            **{each.removeprefix(SET): fields.pop(each) for each in kept if each.startswith(SET)},
            **_table(f"strategies.{name}.set", fields.pop("set", {})),
        }
        for axis, value in values.items():
            settings |= dict.fromkeys(settings_of(axis, name), value)
        if not strategies[name].traits_with(settings).uses_servers:
            values = {axis: each for axis, each in values.items() if axis not in OF_SERVERS}
        shown = [strategy_label(name)]
        for axis, value in values.items():
            varied = settings_of(axis, name)
            if not varied and axis != BANDWIDTH:
                fields[axis] = value
            if len(axes[axis]) > 1:
                shown.append(f"{(*varied, axis)[0]}={_shown(value, axes[axis])}")
        fields["set"] = settings
        bandwidth = values.get(BANDWIDTH, 0)
        number = isinstance(bandwidth, int | float) and not isinstance(bandwidth, bool)
        if not number or not 0 <= bandwidth <= BANDWIDTH_MAX:
            raise InvalidValue(f"bandwidth {bandwidth!r} is no number of Mbit/s up to 1,000,000")
        weights = {field: of_strategy[field] for field in WEIGHTS if field in of_strategy}
        axes_of = {"strategy": name, **weights, **values}
        return Cell(" ".join(shown), axes_of, fields, float(bandwidth))

    def _common(self) -> dict[str, Any]:
        """Return the job's fields without the seed; its settings are named as axes ("set.tau")."""
        found = {name: value for name, value in self.job.items() if name not in ("set", "seed")}
        settings = _table("job.set", self.job.get("set", {}))
        return {**found, **{SET + name: value for name, value in settings.items()}}

    def _axes(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for axis, values in self.grid.items():
            if axis == "set":
                settings = _table("grid.set", values)
                found |= {SET + name: _values(SET + name, each) for name, each in settings.items()}
            elif axis in AXES:
                found[axis] = _values(axis, values)
            else:
                raise unknown("axis of a comparison", axis, [*AXES, "set"])
        # A file has the settings last, so a comparison that is read keeps the order of its axes.
        order = {axis: place for place, axis in enumerate(AXES)}
        return dict(sorted(found.items(), key=lambda each: order.get(each[0], len(order))))


def _product(application: str, job: Values, grid: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of the values of an application's options."""
    axes = {axis: _values(axis, values) for axis, values in grid.items()}
    varied = [axis for axis, values in axes.items() if len(values) > 1]
    cells = []
    for chosen in product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        shown = [f"{axis}={_shown(values[axis], axes[axis])}" for axis in varied]
        cells.append(Cell(" ".join(shown) or application, values, {**job, **values}))
    return cells


def _shown(value: Any, values: Sequence[Any]) -> Any:
    """Return a value of an axis as names of cells show it: its label, where labels differ."""
    labels = {label_of(each) for each in values}
    return label_of(value) if len(labels) == len(values) else value


def names_of(axis: str) -> list[str]:
    """Return the names that an axis varies: a field, or one or more settings.

    >>> names_of("workers"), names_of("set.tau"), names_of("set.downpour.n_push,n_fetch")
    (['workers'], ['tau'], ['n_push', 'n_fetch'])
    """
    return axis.removeprefix(SET).rpartition(".")[2].split(",")


def settings_of(axis: str, strategy: str) -> list[str]:
    """Return the settings of a strategy that an axis varies; none for an axis of a field."""
    known = strategies[strategy].Settings.__struct_fields__
    return [name for name in names_of(axis) if name in known] if axis.startswith(SET) else []


def label_of(value: Any) -> str:
    """Return a value as titles show it: the name of a file without its folder.

    >>> label_of("digits"), label_of("csv:/data/wine.csv"), label_of("/nets/mine.py:small")
    ('digits', 'wine.csv', 'mine.py:small')
    """
    path = str(value).removeprefix("csv:").removeprefix("images:")
    return path.rstrip("/").rpartition("/")[2]


def strategy_label(name: str) -> str:
    """Return a strategy's name; for a user's own strategy, the name of its class."""
    return name.rpartition(":")[2]


def own_axes(axes: Mapping[str, list[Any]], strategy: str) -> dict[str, list[Any]]:
    """Return the axes that a strategy has; an axis for it alone replaces a general one."""
    found = {axis: values for axis, values in axes.items() if applies(axis, strategy)}
    special = {name for axis in found if _whose(axis) for name in settings_of(axis, strategy)}
    return {
        axis: values
        for axis, values in found.items()
        if _whose(axis) or not axis.startswith(SET) or not special & {*settings_of(axis, strategy)}
    }


def _whose(axis: str) -> str:
    """Return the strategy of an axis such as "set.easgd.tau"; empty for a general axis."""
    return axis.removeprefix(SET).rpartition(".")[0] if axis.startswith(SET) else ""


def applies(axis: str, strategy: str) -> bool:
    """Return whether a strategy has the field or a setting that an axis varies.

    "set.tau" is an axis of every strategy with that setting, "set.easgd.tau" of one strategy only.
    The settings of "set.tau,n_push" have the same value; a strategy has one or more of them.

    >>> applies("set.tau", "easgd"), applies("set.tau", "sync"), applies("set.bmuf.tau", "easgd")
    (True, False, False)
    """
    kind: type[Strategy] = strategies[strategy]
    if axis.startswith(SET):
        has = bool(settings_of(axis, strategy))
        return has and _whose(axis) in ("", strategy, strategy_label(strategy))
    return {
        "staleness": strategy == "ssp",
        "apply_at": strategy == "ssp",
        **dict.fromkeys(OF_SERVERS, kind.traits.uses_servers),
        "redundancy": kind.traits.allows_redundancy,
    }.get(axis, True)


def comparison_of(values: Values) -> Comparison:
    """Return a comparison from plain values.

    Raises:
        InvalidValue: a value of a wrong type or out of its range.
    """
    return converted(dict(values), Comparison)


def comparison_from(file: Values, options: Values) -> Comparison:
    """Return a comparison from the values of its file and from options, which override the file.

    Args:
        file: the fields of `Comparison`.
        options: the options by the name of an axis, or of a field of `Comparison`, `SimulatedTime`
            or a job. An axis, also one in `set`, has a value or a list of values.

    Raises:
        InvalidValue: a value of a wrong type or out of its range.
        UnknownName: an option that is neither an axis nor a field.
    """
    parts = ("job", "grid", "simulation")
    for name in file:
        if name not in (*Comparison.__struct_fields__, FORMAT_KEY):
            raise unknown("part of a comparison", name, Comparison.__struct_fields__)
    found: dict[str, Any] = {**file, **{part: _table(part, file.get(part, {})) for part in parts}}
    job, grid = found["job"], found["grid"]
    for name in (*AXES, "set"):  # an axis replaces the field of the file's job
        if name in options:
            job.pop(name, None)
    for name, value in options.items():
        if name == "set":
            grid["set"] = {**_table("grid.set", grid.get("set", {})), **_table("set", value)}
        elif name in AXES:
            grid[name] = value
        elif name in SimulatedTime.__struct_fields__:
            found["simulation"][name] = value
        elif name in Comparison.__struct_fields__:
            found[name] = value
        elif name in JobSpec.__struct_fields__:
            job[name] = value
        else:
            known = dict.fromkeys([*AXES, "seeds", "simulated", *JobSpec.__struct_fields__])
            raise unknown("option of a comparison", name, [*known])
    if "strategy" in options and isinstance(found.get("strategies"), dict):
        names = _values("strategy", options["strategy"])  # some of the file's, perhaps
        found["strategies"] = {k: v for k, v in found["strategies"].items() if k in names}
    return converted(found, Comparison)


def dump_comparison(comparison: Comparison) -> str:
    """Return the comparison as TOML."""
    import tomli_w

    return f"{FORMAT_KEY} = {FORMAT}\n{tomli_w.dumps(msgspec.to_builtins(comparison))}"


def _table(name: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise InvalidValue(f"{name}: expected a table of names and values, got {values!r}")
    return dict(values)


def _values(axis: str, values: Any) -> list[Any]:
    found = list(values) if isinstance(values, list | tuple | range) else [values]
    if not found:
        raise InvalidValue(f"axis {axis!r} of the comparison has no values")
    return list(_distinct(found))


def _distinct(values: Sequence[Any]) -> Iterator[Any]:
    seen = []
    for value in values:
        if repr(value) not in seen:  # True is not 1
            seen.append(repr(value))
            yield value
