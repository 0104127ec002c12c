"""Public names of a package, imported from their modules on first use.

So a program imports only what it uses, and one that needs no torch starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def public(
    package: str, homes: Mapping[str, str], packages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`.

    Args:
        package: the name of the package.
        homes: the public names of each module, with blanks between them; an empty text for a
            module that is a public name itself.
        packages: the packages in it that are reached by attribute, although no public name.

    >>> get, names = public("example", {"math": "pi tau", "json": ""})
    >>> names(), get("pi") > 3, get("json").dumps([1])
    (['json', 'pi', 'tau'], True, '[1]')
    """
    found: dict[str, tuple[str, str]] = {}
    for module, names in homes.items():
        for name in names.split():
            found[name] = module, name
        if not names:
            found[module.rpartition(".")[2]] = module, ""

    def get(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = found[name]
        loaded = import_module(module)
        return getattr(loaded, attribute) if attribute else loaded

    return get, lambda: sorted(found)
