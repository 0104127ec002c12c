"""The `shoal` command itself: its errors and signals, and flags made of schemas."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import current_thread, main_thread
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click
import msgspec
from rich.console import Console

from shoal.engines.options import flag_of
from shoal.engines.pairs import values_of
from shoal.errors import InvalidValue, ShoalError, UsageError
from shoal.runs.trust import trusting
from shoal.storage.files import FULL
from shoal.transport import credentials

F = TypeVar("F", bound=Callable[..., Any])

SECTIONS = [  # of --help, in this order
    "Comparison",
    "Simulated time",
    "Faults",
    "Data",
    "Model",
    "Training",
    "Cluster",
    "Worker group",
    "Fault tolerance",
    "Checkpoints",
    "Network",
    "Output",
    "Options",
]
TOKEN_FILE = "shoal.token_file"
TRUST = "shoal.trust"
EXIT_USAGE, EXIT_FAILED = 2, 1
EXIT_INTERRUPTED, EXIT_TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # as shells have it


class SectionedOption(click.Option):
    """An option under a heading of --help, with its default if it has one."""

    def __init__(self, *args: Any, section: str = SECTIONS[-1], **settings: Any) -> None:
        default = settings.get("default")
        settings.setdefault("show_default", default not in (None, "", -1) and default != ())
        settings.setdefault("show_envvar", True)
        super().__init__(*args, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose --help groups options by section.

    cleans:  whether it has `ended_by_signals` around what it begins; until then, and after it, a
             signal ends the process at once
    """

    def __init__(self, *args: Any, cleans: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._cleans = cleans

    def invoke(self, ctx: click.Context) -> Any:
        signals = nullcontext() if self._cleans else _handled(*USUAL)
        with signals, trusting(ctx.meta.get(TRUST, False)):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None and isinstance(each, click.Option):
                sections[getattr(each, "section", SECTIONS[-1])].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class Shoal(click.Group):
    """Turns typed errors into one readable message and an exit status.

    `train` and the name of an application is a command of its own.
    """

    command_class = SectionedCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        both = " ".join(args[:2])
        command = self.commands.get(both)
        if command is not None:
            return both, command, args[2:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            _complain(error)
            ctx.exit(EXIT_USAGE)
        except ShoalError as error:
            _complain(error)
            ctx.exit(EXIT_FAILED)
        except OSError as error:
            if error.errno not in FULL:
                raise
            file = error.filename or "the files of this command"
            click.echo(f"no space left for {file}: make room, or use another --out", err=True)
            ctx.exit(EXIT_FAILED)
        except KeyboardInterrupt as interrupt:
            said = ": ".join(["interrupted", *map(str, interrupt.args)])
            Console(stderr=True, highlight=False, soft_wrap=True).print(said, markup=False)
            ctx.exit(EXIT_TERMINATED if isinstance(interrupt, _Terminated) else EXIT_INTERRUPTED)


def _complain(error: ShoalError) -> None:
    name = type(error).__name__
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"[bold red]{name}[/]: ", end="", markup=True
    )
    click.echo(str(error), err=True)


@click.group(cls=Shoal, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal")
def main() -> None:
    """Train PyTorch models through a parameter server.

    Start with:  shoal train digits --workers 2 --servers 2
    """


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option that belongs to one command alone."""
    return click.option(*names, cls=SectionedOption, **settings)


as_json = option("--json", "as_json", is_flag=True, help="print one JSON object as the last line")

trusts = option(
    "--trust",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _, trust: ctx.meta.update({TRUST: trust}),
    help="trust files of other users: import the code they name, and resume their runs",
)


def token_options(command: F) -> F:
    """Add `--token` and `--token-file`, the shared secret of a cluster, and the options of TLS."""
    section = "Network"
    token = option(
        "--token",
        envvar="SHOAL_TOKEN",
        default="",
        section=section,
        callback=_token,
        help="shared secret of the cluster; `ps` shows it to other users, so prefer --token-file",
    )
    file = option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        section=section,
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, _, path: ctx.meta.update({TOKEN_FILE: path}),
        help="file with the shared secret of the cluster, which only its owner can read",
    )
    return tls_options(token(file(command)))


def tls_options(command: F) -> F:
    """Add `--tls` and `--require-tls` to a command; they count for what it starts as well."""
    folder = option(
        "--tls",
        type=click.Path(file_okay=False),
        metavar="FOLDER",
        envvar=credentials.VARIABLE,
        section="Network",
        expose_value=False,
        callback=_tls,
        help="folder of this host's certificate, as `shoal keys add` makes it; with it, processes "
        "of several hosts talk over tls://",
    )
    require = option(
        "--require-tls",
        is_flag=True,
        envvar=credentials.REQUIRE,
        section="Network",
        expose_value=False,
        callback=_require_tls,
        help="refuse connections between hosts that are not encrypted",
    )
    return folder(require(command))


def _tls(ctx: click.Context, _: click.Parameter, folder: str | None) -> None:
    if folder:
        try:
            ctx.call_on_close(credentials.set_default(folder))
        except InvalidValue as error:
            raise click.UsageError(error.message) from None


def _require_tls(ctx: click.Context, _: click.Parameter, require: bool) -> None:
    if require:
        ctx.call_on_close(credentials.require_tls())


def _token(ctx: click.Context, _: click.Parameter, token: str) -> str:
    path: Path | None = ctx.meta.get(TOKEN_FILE)
    on_the_line = ctx.get_parameter_source("token") == click.core.ParameterSource.COMMANDLINE
    if path is None:
        if on_the_line:
            click.echo("warning: `ps` shows --token to other users; use --token-file", err=True)
        return token
    if on_the_line:
        raise click.UsageError("give --token or --token-file, not both")
    if path.stat().st_mode & 0o077:
        raise click.UsageError(f"{path} can be read by other users: chmod 600 {path}")
    return path.read_text().strip()


def options_of(
    schema: type[msgspec.Struct],
    leave_out: Sequence[str] = (),
    required: Sequence[str] = (),
    lists: Sequence[str] = (),
    **usual: Any,
) -> Callable[[F], F]:
    """Declare an option for each field of a schema that has a help text, in the schema's order.

    leave_out:  the fields without an option
    required:   the fields whose option has to be given
    lists:      the fields whose option may have several values, with commas between them
    usual:      the defaults of this command that differ from the schema's
    """
    hints = get_type_hints(schema, include_extras=True)

    def decorate(command: F) -> F:
        for field in reversed(msgspec.structs.fields(schema)):
            if get_origin(hints[field.name]) is not Annotated or field.name in leave_out:
                continue
            kind, meta = get_args(hints[field.name])
            default = usual.get(field.name, field.default)
            settings: dict[str, Any] = {
                "help": meta.description,
                "envvar": meta.extra["env"] or None,
            }
            if field.required or field.name in required:
                settings["required"] = True
            else:
                settings["default"] = default if isinstance(default, str | int | float) else None
            if field.name == "token":
                command = token_options(command)
                continue
            command = option(
                flag_of(schema, field.name),
                field.name,
                section=meta.extra["section"],
                **settings,
                **_click_type(kind, meta, field.name in lists),
            )(command)
        return command

    return decorate


def _click_type(kind: Any, meta: msgspec.Meta, several: bool = False) -> dict[str, Any]:
    """Return how click reads a value within the bounds of its schema, or several values."""
    if several:
        return {"type": str, "metavar": "VALUE,..."}
    if kind is bool:
        return {"is_flag": True}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(list(get_args(kind)))}
    if get_origin(kind) is tuple:
        return {"multiple": True, "metavar": "MODULE"}
    if get_origin(kind) is dict:
        return {"multiple": True, "metavar": "NAME=VALUE"}
    if kind not in (int, float):
        return {"type": str}
    least, most = (meta.ge if meta.gt is None else meta.gt), meta.le
    if least is None and most is None:
        return {"type": kind}
    within: Any = click.IntRange if kind is int else click.FloatRange
    return {"type": within(least, most, min_open=meta.gt is not None)}


def plain(flags: Mapping[str, Any], schema: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the given flags that are fields of a schema, with NAME=VALUE words as tables."""
    hints = get_type_hints(schema, include_extras=True)
    found = {name: value for name, value in flags.items() if name in schema.__struct_fields__}
    for name, value in found.items():
        if get_origin(hints[name]) is Annotated and get_origin(get_args(hints[name])[0]) is dict:
            found[name] = values_of(value, flag_of(schema, name))
    return found


def tell(as_json: bool, report: Mapping[str, Any], show: Callable[[Console, Any], None]) -> None:
    """Print the report of a command, as one line of JSON or with `show`."""
    if as_json:
        click.echo(json.dumps(report))
    else:
        show(Console(), report)


def given() -> dict[str, Any]:
    """Return the options and arguments of the present command that are not defaults."""
    ctx = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return {k: v for k, v in ctx.params.items() if ctx.get_parameter_source(k) != default}


class _Terminated(KeyboardInterrupt):
    """An interrupt by SIGTERM, not by Ctrl-C."""


def _terminate(*_: object) -> None:
    raise _Terminated


USUAL = (signal.default_int_handler, signal.SIG_DFL)  # Python's, for SIGINT and SIGTERM


@contextmanager
def _handled(interrupt: Any, terminate: Any) -> Iterator[None]:
    """Set handlers of SIGINT and SIGTERM in a `with` block; an ignored signal stays ignored."""
    wanted = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
    if current_thread() is not main_thread():  # handlers can be set in the main thread only
        wanted = {}
    before = {number: signal.getsignal(number) for number in wanted}
    before = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, wanted[number])
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does, and say so once the processes of the run have ended."""
    try:
        with _handled(signal.default_int_handler, _terminate):
            yield
    except KeyboardInterrupt as interrupt:
        said = ("every process of the run has been ended", *map(str, interrupt.args))
        raise type(interrupt)("; ".join(said)) from None
