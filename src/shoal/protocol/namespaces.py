"""Namespaces: what workers call tables, and what tables are called in views.

A worker has a namespace, which is its group's unless it says another. What it calls a table is the
name in there; behind a slash it is the name of any table of the run.
"""

from __future__ import annotations

from copy import copy

import msgspec

from shoal.protocol.views import View


def qualified(name: str, namespace: str) -> str:
    """What a view calls it.

    >>> qualified("w", ""), qualified("w", "eval"), qualified("/w", "eval")
    ('w', 'eval/w', 'w')
    """
    if name.startswith("/"):
        return name[1:]
    return f"{namespace}/{name}" if namespace else name


def local(name: str, namespace: str) -> str:
    """What a worker calls what a view calls so: `qualified` takes it back.

    >>> local("w", ""), local("eval/w", "eval"), local("w", "eval")
    ('w', 'w', '/w')
    """
    if not namespace:
        return name
    inside = name.startswith(f"{namespace}/")
    return name[len(namespace) + 1 :] if inside else f"/{name}"


def seen_from(view: View, namespace: str) -> View:
    """A view with the tables' names as a worker says them."""
    if not namespace:
        return view
    tables = tuple(copy(spec) for spec in view.tables)
    for spec in tables:  # which may be longer with its slash than one that is declared
        msgspec.structs.force_setattr(spec, "name", local(spec.name, namespace))
    return msgspec.structs.replace(view, tables=tables)


def owner(name: str, group: str) -> str:
    """The group whose clocks a table goes by that a worker of `group` declares.

    >>> owner("eval/w", "eval"), owner("w", "eval"), owner("eval/w", "")
    ('eval', '', '')
    """
    return group if name.startswith(f"{group}/") else ""
