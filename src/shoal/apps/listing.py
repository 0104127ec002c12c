"""`shoal list`: what can be named, with options and defaults."""

from __future__ import annotations

from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any, get_type_hints

from msgspec.structs import fields

from shoal.registry import unknown

if TYPE_CHECKING:
    from shoal.codecs import NamedCodec
    from shoal.strategies import Strategy

Record = dict[str, Any]
Rows = list[tuple[str, ...]]


def records_of(what: str, name: str = "") -> list[Record]:
    """Return the records of a kind of thing, or only the one with a given name.

    Raises:
        UnknownName: nothing has that name
    """
    if name and what == "strategies":  # also a strategy of a user
        return [_strategy(name)]
    found = {"strategies": _strategies, "tables": _tables, "data": _data, "codecs": _codecs}[what]()
    if not name:
        return found
    named = [record for record in found if record["name"] == name]
    if not named:
        raise unknown(f"name in {what!r}", name, {record["name"] for record in found})
    return named


def rows_of(what: str, name: str = "") -> tuple[tuple[str, ...], Rows]:
    """Return `records_of` as (column names, rows)."""
    records = records_of(what, name)
    if what == "strategies":
        return STRATEGY_COLUMNS, [row for each in records for row in _rows_of_strategy(each)]
    if what == "codecs":
        rows = [row for each in records for row in _rows_of_codec(each)]
        return COLUMNS[what], [*rows, *_rows_of_all_codecs(records)]
    return COLUMNS[what], [tuple(map(str, each.values())) for each in records]


OF_ALL_CODECS = "after"  # the option that all codecs have
STRATEGY_COLUMNS = ("strategy, --set NAME=VALUE", "what it does (paper)", "servers", "redundancy")
COLUMNS = {
    "tables": ("access method or handler", "tables", "options and defaults"),
    "data": ("data set", "what it is", "default model"),
    "codecs": ("codec, :OPTION=VALUE", "what it does (paper)", "bytes a value", "biased"),
}


def _strategies() -> list[Record]:
    from shoal.strategies import strategies

    return [_strategy(name) for name in strategies]


def _strategy(name: str) -> Record:
    from shoal.strategies import strategies

    kind = strategies[name]
    return {
        "name": name,
        "summary": kind.summary,
        "paper": kind.source,
        "servers": kind.traits.uses_servers,
        "redundancy": kind.traits.allows_redundancy,
        "optimizer": kind.Settings.optimizer,
        "state": kind.traits.state,
        "on_timeout": kind.traits.late_workers,
        "settings": [
            {"name": each, "default": default, "meaning": meaning}
            for each, default, meaning in settings(kind)
        ],
    }


def _rows_of_strategy(record: Record) -> Rows:
    paper = f" ({record['paper']})" if record["paper"] else ""
    uses = ("yes" if record[each] else "no" for each in ("servers", "redundancy"))
    said = (
        ("  its usual optimizer", record["optimizer"]),
        ("  its state", record["state"]),
        ("  on a time-out", record["on_timeout"]),
    )
    return [
        (record["name"], f"{record['summary']}{paper}", *uses),
        *((what, text, "", "") for what, text in said if text),
        *(
            (f"  {each['name']}={each['default']}", each["meaning"], "", "")
            for each in record["settings"]
        ),
    ]


def settings(kind: type[Strategy]) -> list[tuple[str, Any, str]]:
    """Return (name, default, meaning) of each setting of a strategy."""
    meanings = get_type_hints(kind.Settings, include_extras=True)
    return [
        (each.name, each.default, meanings[each.name].__metadata__[0].description)
        for each in fields(kind.Settings)
    ]


def _tables() -> list[Record]:
    from shoal.tables.custom.shard import handlers
    from shoal.tables.dense.methods import access_methods
    from shoal.tables.sparse.optimizers import row_methods

    found = []
    for kind, methods in (("dense", access_methods), ("sparse", row_methods)):
        for name in methods:
            options = methods[name].options
            shown = ", ".join(f"{option}={default}" for option, default in options.items())
            found.append((name, kind, shown or "no options"))
    for name in handlers:
        shown = ", ".join(map(str, signature(handlers[name]).parameters.values()))
        found.append((name, "custom", shown or "no options"))
    return [dict(zip(("name", "tables", "options"), each, strict=True)) for each in found]


def _data() -> list[Record]:
    from shoal.data.catalogue import datasets

    found = [(name, datasets[name].summary, datasets[name].default_model) for name in datasets]
    return [dict(zip(("name", "summary", "default_model"), each, strict=True)) for each in found]


def _codecs() -> list[Record]:
    from shoal.codecs import codecs
    from shoal.codecs.named import DELTA

    differences: Record = {
        "name": f"{DELTA}CODEC",
        "summary": "of rows that workers pull, under bsp: what a round has changed, by any codec",
        "paper": "Liu et al. 2020, model residuals of DORE",
        "bytes": None,
        "biased": False,
        "argument": "",
        "options": [],
    }
    return [*(_codec(codecs[name]) for name in codecs), differences]


def _codec(kind: type[NamedCodec]) -> Record:
    codec, meanings = kind(), get_type_hints(kind, include_extras=True)
    matrix = 512, 512
    return {
        "name": kind.name,
        "summary": kind.summary,
        "paper": kind.source,
        "bytes": round(codec.bytes_of(matrix) / prod(matrix), 3),
        "biased": codec.biased,
        "argument": kind.argument,
        "options": [
            {
                "name": each.name,
                "default": each.default,
                "meaning": meanings[each.name].__metadata__[0].description,
            }
            for each in fields(kind)
        ],
    }


def _rows_of_codec(record: Record) -> Rows:
    said = f"{record['summary']} ({record['paper']})"
    return [
        (record["name"], said, f"{record['bytes'] or ''}", "yes" if record["biased"] else "no"),
        *(
            (f"  {each['name']}={each['default']}", each["meaning"], "", "")
            for each in record["options"]
            if each["name"] != OF_ALL_CODECS
        ),
    ]


def _rows_of_all_codecs(records: list[Record]) -> Rows:
    """Return the rows of the option that all codecs have."""
    [own] = [each for each in records[0]["options"] if each["name"] == OF_ALL_CODECS]
    return [
        ("all of them", "", "", ""),
        (f"  {own['name']}={own['default']}", own["meaning"], "", ""),
    ]
