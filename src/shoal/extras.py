"""Packages of the extras of `pip install`: imported where they are used.

`pip install shoal` brings what a parameter server needs. Data sets, reports and benchmarks need
more: `pip install 'shoal[data]'`, `'shoal[reports]'`, `'shoal[bench]'`, `'shoal[mpi]'`,
`'shoal[tls]'`, `'shoal[ray]'`, `'shoal[codecs]'`, or `'shoal[all]'`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType

from shoal.errors import PackageMissing

EXTRAS: Mapping[str, str] = MappingProxyType(
    {
        "PIL": "data",
        "pooch": "data",
        "pyarrow": "data",
        "scipy": "data",
        "sklearn": "data",
        "jinja2": "reports",
        "matplotlib": "reports",
        "plotly": "reports",
        "gensim": "bench",
        "ray": "ray",
        "mpi4py": "mpi",
        "cryptography": "tls",
        "cramjam": "codecs",
    }
)


NAMES: Mapping[str, str] = MappingProxyType({"PIL": "pillow", "sklearn": "scikit-learn"})


def require(module: str, what: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: the name to import, such as "sklearn.metrics".
        what: the purpose that needs it; it begins the error's message.

    Raises:
        PackageMissing: the package is not installed; the message has the line to type.

    >>> require("json", "this example").dumps([1])
    '[1]'
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise  # a package that it needs itself
        raise PackageMissing(
            f"{what} needs {NAMES.get(package, package)}, which is not installed: "
            f"pip install 'shoal[{EXTRAS[package]}]'"
        ) from None
