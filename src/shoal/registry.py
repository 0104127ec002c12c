"""Registries of named things, with errors that list the known names.

>>> shapes = Registry[int]("shape")
>>> shapes.add("square", 4)
>>> shapes["square"]
4
>>> shapes["cube"]
Traceback (most recent call last):
    ...
shoal.errors.UnknownName: unknown shape 'cube' (known: square)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from shoal.errors import InvalidValue, UnknownName

T = TypeVar("T")
_last_resorts: list[Callable[[], object]] = []


def when_unknown(load: Callable[[], object]) -> None:
    """Call `load` before an unknown name is refused; it may register that name.

    A server of `shoal run` imports the user's script like this.
    """
    _last_resorts.append(load)


class Registry(Generic[T]):
    """A table of named things of one kind.

    Other packages add things through the entry-point group `shoal.<kind>s`, or through `group`.
    They are loaded only when a name is asked for that is not registered yet.
    """

    def __init__(self, kind: str, group: str = "") -> None:
        self.kind = kind
        self.group = group or f"shoal.{kind.replace(' ', '_')}s"
        self._known: dict[str, T] = {}
        self._plugins_loaded = False

    def add(self, name: str, thing: T, again: bool = False) -> None:
        """Register `thing` under `name`; refuse a name that is taken, unless `again` is true."""
        if name in self._known and not again:
            raise InvalidValue(f"{self.kind} {name!r} is registered already")
        self._known[name] = thing

    def __getitem__(self, name: str) -> T:
        for load in (self._load_plugins, *_last_resorts):
            if name in self._known:
                break
            load()
        if name not in self._known:
            raise unknown(self.kind, name, self._known)
        return self._known[name]

    def registered(self, name: str) -> T | None:
        """Return what this process has registered under a name so far; None if it has nothing."""
        return self._known.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._known))

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=self.group):
            self._known.setdefault(point.name, point.load())


def unknown(kind: str, name: str, known: object) -> UnknownName:
    """Return the error for a name that is not among `known`, with the nearest one suggested."""
    names = sorted(str(each) for each in known)  # type: ignore[attr-defined]
    return UnknownName(f"unknown {kind} {name!r} (known: {', '.join(names)}){nearest(name, names)}")


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint at the nearest of these names; empty if none is near.

    >>> nearest("taus", ["beta", "tau"])
    "; did you mean 'tau'?"
    """
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
