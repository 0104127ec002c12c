"""`shoal list`: what can be named, with options and defaults."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, get_type_hints

from msgspec.structs import fields

if TYPE_CHECKING:
    from shoal.strategies import Strategy

Rows = list[tuple[str, ...]]


def rows_of(what: str) -> tuple[tuple[str, ...], Rows]:
    """(column names, rows) of a kind of thing."""
    return {"strategies": _strategies, "tables": _tables, "data": _data}[what]()


def _strategies() -> tuple[tuple[str, ...], Rows]:
    from shoal.strategies import strategies

    rows: Rows = []
    for name in strategies:
        kind = strategies[name]
        uses = ("yes" if each else "no" for each in (kind.uses_servers, kind.takes_copies))
        rows.append(
            (name, f"{kind.summary} ({kind.source})" if kind.source else kind.summary, *uses)
        )
        said = (("  its state", kind.kept), ("  on a time-out", kind.late))
        rows += [(what, text, "", "") for what, text in said if text]
        rows += [(f"  {each}={default}", text, "", "") for each, default, text in settings(kind)]
    return ("strategy, --set NAME=VALUE", "what it does (paper)", "servers", "redundancy"), rows


def settings(kind: type[Strategy]) -> list[tuple[str, str, str]]:
    """(name, default, meaning) of each setting of a strategy."""
    meanings = get_type_hints(kind.Settings, include_extras=True)
    return [
        (each.name, str(each.default), meanings[each.name].__metadata__[0].description)
        for each in fields(kind.Settings)
    ]


def _tables() -> tuple[tuple[str, ...], Rows]:
    from shoal.tables.custom.shard import handlers
    from shoal.tables.methods import access_methods
    from shoal.tables.sparse.optimizers import row_methods

    rows: Rows = []
    for kind, methods in (("dense", access_methods), ("sparse", row_methods)):
        for name in methods:
            options = methods[name].options
            shown = ", ".join(f"{option}={default}" for option, default in options.items())
            rows.append((name, kind, shown or "no options"))
    for name in handlers:
        shown = ", ".join(map(str, signature(handlers[name]).parameters.values()))
        rows.append((name, "custom", shown or "no options"))
    return ("access method or handler", "tables", "options and defaults"), rows


def _data() -> tuple[tuple[str, ...], Rows]:
    from shoal.data.catalogue import datasets

    rows: Rows = [(name, datasets[name].summary, datasets[name].default_model) for name in datasets]
    return ("data set", "what it is", "default model"), rows
