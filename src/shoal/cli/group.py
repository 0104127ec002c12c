"""The `shoal` command itself: its errors and signals, and flags made of schemas."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
from rich.console import Console

from shoal.errors import ShoalError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


class Shoal(click.Group):
    """Turns typed errors into one readable message and an exit status.

    `train` and the name of an application is a command of its own.
    """

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
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted: every process of the run has been ended")
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=Shoal, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal")
def main() -> None:
    """Train PyTorch models through a parameter server.

    Start with:  shoal train digits --workers 2 --servers 2
    """


def _complain(error: ShoalError) -> None:
    name = type(error).__name__
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"[bold red]{name}[/]: ", end="", markup=True
    )
    click.echo(str(error), err=True)


def options_of(schema: type[Any], leave_out: tuple[str, ...]) -> Callable[[F], F]:
    """A flag for every field of a schema that a flag can carry, in the schema's order."""

    def decorate(command: F) -> F:
        return _with_options(command, schema, leave_out)

    return decorate


def _with_options(command: F, schema: type[Any], leave_out: tuple[str, ...]) -> F:
    hints = get_type_hints(schema, include_extras=True)
    defaults = schema()
    for name in reversed(schema.__struct_fields__):
        if name in leave_out:
            continue
        kind, meta = get_args(hints[name])
        default = getattr(defaults, name)
        flag = f"--{name.replace('_', '-')}"
        shown = str(default) if default != "" else ""
        options: dict[str, Any] = {"default": None, "help": meta.description}
        if name == "optimizer_options":
            flag, options["multiple"], options["metavar"] = "--optimizer-option", True, "NAME=VALUE"
        elif get_origin(kind) is not None:
            options["type"] = click.Choice(list(get_args(kind)))
        else:
            options["type"] = kind
        if shown and name != "optimizer_options":
            options["help"] += f"  [{shown}]"
        command = click.option(flag, name, **options)(command)
    return command


@contextmanager
def ended_by_signals() -> Any:
    """Let SIGTERM clean up as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
