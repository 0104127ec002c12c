"""Every example in every docstring runs and prints what it says."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import shoal
import shoal.client
import shoal.pytorch
import shoal.reports
import shoal.tables
from shoal.client.context import joined

MODULES = ["shoal", *(found.name for found in pkgutil.walk_packages(shoal.__path__, "shoal."))]


@pytest.fixture(scope="module", autouse=True)
def one_cluster():
    """Examples that call `shoal.init()` share the cluster that the first of them has started."""
    yield
    context = joined()
    if context is not None:
        context.close()


@pytest.mark.parametrize("name", MODULES)
def test_every_docstring_example_runs(name):
    try:
        module = import_module(name)
    except ImportError as error:
        # An optional package of somebody else's may be missing; none of our own, but a CLI to come
        missing = error.name or ""
        if missing.split(".")[0] == "shoal" and missing != "shoal.cli":
            raise
        pytest.skip(f"{name} needs {missing}")
    assert doctest.testmod(module).failed == 0


def test_doctest_modules_are_found():
    assert {"shoal.keys", "shoal.registry", "shoal.tables.access"} <= set(MODULES)
    assert doctest.testmod(import_module("shoal.keys")).attempted >= 4


PUBLIC = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (shoal, shoal.client, shoal.pytorch, shoal.reports, shoal.tables)
    for name in package.__all__
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring_with_an_example(name):
    public = PUBLIC[name]
    docs = public.__doc__ or ""
    assert docs.split("\n")[0].rstrip().endswith((".", ":")), "one line that says what it does"
    if name != "shoal.nn":
        assert "Example:\n" in docs
        assert ">>> " in docs
