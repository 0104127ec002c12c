"""Every example in every docstring runs and prints what it says."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import shoal

MODULES = ["shoal", *(found.name for found in pkgutil.walk_packages(shoal.__path__, "shoal."))]


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
