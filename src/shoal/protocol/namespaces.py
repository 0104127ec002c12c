"""Namespaces: translates workers' names of tables to names in views and back.

A worker has a namespace, by default its group's name. A name without a leading slash is relative to
the namespace; a name with a leading slash can name any table of the run.
"""

from __future__ import annotations

from copy import copy

import msgspec

from shoal.protocol.views import View


def qualified(name: str, namespace: str) -> str:
    """Return the name that views use for a table that a worker calls `name`.

    >>> qualified("w", ""), qualified("w", "eval"), qualified("/w", "eval")
    ('w', 'eval/w', 'w')
    """
    if name.startswith("/"):
        return name[1:]
    return f"{namespace}/{name}" if namespace else name


def local(name: str, namespace: str) -> str:
    """Return the name that a worker uses for a table that views call `name`; invert `qualified`.

    >>> local("w", ""), local("eval/w", "eval"), local("w", "eval")
    ('w', 'w', '/w')
    """
    if not namespace:
        return name
    inside = name.startswith(f"{namespace}/")
    return name[len(namespace) + 1 :] if inside else f"/{name}"


def seen_from(view: View, namespace: str) -> View:
    """Return a view with the table names that a worker of this namespace uses."""
    if not namespace:
        return view
    tables = tuple(copy(spec) for spec in view.tables)
    for spec in tables:  # without checks: with its slash a name may exceed the limit
        msgspec.structs.force_setattr(spec, "name", local(spec.name, namespace))
    return msgspec.structs.replace(view, tables=tables)


def owner(name: str, group: str) -> str:
    """Return the group whose clocks a table uses if a worker of `group` declares it.

    >>> owner("eval/w", "eval"), owner("w", "eval"), owner("eval/w", "")
    ('eval', '', '')
    """
    return group if name.startswith(f"{group}/") else ""
