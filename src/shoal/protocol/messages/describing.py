"""Messages as readable lines, for errors, traces and transcripts."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.messages import (
    Freeze,
    Frozen,
    Message,
    NewView,
    Part,
    Probe,
    RefuseView,
    Replicate,
    ReplicateAck,
    Reply,
    Request,
    ViewRefused,
)
from shoal.protocol.views import FOREVER

MEMBERS_SHOWN = 100  # members of a view that a line names
PARTS_SHOWN = 10  # parts of a request that a text names


def describe(message: Message) -> str:
    """Return a message as one readable line."""
    name = type(message).__name__
    if isinstance(message, Request):
        words = [f"#{message.seq}"]
        words += [f"push {_part(part)}" for part in message.pushes[:PARTS_SHOWN]]
        if message.pushes:
            words.append(f"at clock {message.clock}")
        if message.advance >= 0:
            words.append(
                "advance " + ("forever" if message.advance == FOREVER else f"to {message.advance}")
            )
        words += [f"pull {_part(part)}" for part in message.pulls[:PARTS_SHOWN]]
        return " ".join([name, *words])
    if isinstance(message, Reply):
        words = [f"#{message.seq} {message.code}"]
        if message.reason:
            words.append(f"({message.reason})")
        if message.payload:
            words.append(f"{message.payload} bytes")
        return " ".join([name, *words])
    if isinstance(message, Replicate):
        words = [f"{name} {message.number}: {message.what}"] if message.parts else [name]
        words += [_part(part) for part in message.parts[:PARTS_SHOWN]]
        if message.path:
            words.append(f"to clock {message.clock} of server-{message.path[0]}")
        return " ".join(words)
    if isinstance(message, ReplicateAck):
        placements = [
            f"t{table}[{start}: version {version}"
            for table, start, version in message.done[:PARTS_SHOWN]
        ]
        return " ".join([f"{name} below {message.number}", *placements])
    if isinstance(message, NewView):
        view = message.view
        who = " ".join(m.name for m in (*view.servers, *view.workers)[:MEMBERS_SHOWN])
        return f"{name} {view.term}.{view.number}: {who} ({view.reason})"
    if isinstance(message, Frozen | Freeze | RefuseView | ViewRefused):
        return f"{name} for {message.view[0]}.{message.view[1]}"
    if isinstance(message, Probe):
        return f"{name} #{message.seq}" + (" urgent" if message.urgent else "")
    shown = {f: getattr(message, f) for f in message.__struct_fields__ if f in _TELLING}
    return " ".join([name, *(f"{value}" for value in shown.values() if value != "")])


_TELLING = ("reason", "role", "rank", "name", "generation", "table", "error")


def _part(part: Part) -> str:
    keys = f" {part.keys} keys" if part.keys >= 0 else ""
    return f"t{part.table}[{part.start}:{part.stop}){keys}"


def asked(request: Request, tables: Sequence[str], rows: bool = True) -> str:
    """Return a request as readable text: its tables, and with `rows` the first rows of each."""

    def of(part: Part) -> str:
        keys = f"{part.keys} keys of " if part.keys >= 0 else ""
        return f"{keys}{tables[part.table]}[{part.start}:{part.stop})"

    words = []
    for what, parts in (("push", request.pushes), ("pull", request.pulls)):
        named = [of(each) for each in parts[:PARTS_SHOWN]] if rows else _tables(parts, tables)
        words += [f"{what} {each}" for each in named]
        if rows and len(parts) > PARTS_SHOWN:
            words.append(f"{what} {len(parts) - PARTS_SHOWN} more")
    clock = max(request.clock, request.advance)
    when = "after its last clock" if clock >= FOREVER else f"at clock {clock}"
    return f"{', '.join(words)} {when}"


def _tables(parts: Sequence[Part], tables: Sequence[str]) -> list[str]:
    """Return the names of the tables of these parts, each once."""
    return [tables[number] for number in dict.fromkeys(part.table for part in parts)]
