"""The tree of errors: as drawn, by name, and through pickle."""

import copy
import pickle
import re

import pytest

from shoal import errors as module
from shoal.errors import PeerError, ShoalError, UsageError, by_name

CLASSES = [each for each in vars(module).values() if isinstance(each, type)]
CLASSES = [each for each in CLASSES if issubclass(each, ShoalError)]


def drawn() -> dict[str, str]:
    """{class: its parent} as the tree in the module's docstring draws it."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in module.__doc__.splitlines():
        match = re.match(r"^([ │├└─]*)(\w+(?:, \w+)*)", line)
        if not match or not (line.startswith("    ShoalError") or "── " in match[1]):
            continue
        depth, names = len(match[1]), match[2].split(", ")
        path = [each for each in path if each[0] < depth]
        for name in names:
            parents[name] = path[-1][1] if path else "Exception"
        path.append((depth, names[-1]))
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    assert drawn() == {each.__name__: each.__bases__[0].__name__ for each in CLASSES}
    assert len(CLASSES) > 20
    assert all(len(each.__bases__) == 1 for each in CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_survives_pickling(kind):
    error = kind("what to do", ["first event", "second event"])
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert (twin.message, twin.trace) == ("what to do", ("first event", "second event"))
        assert (str(twin), twin.args) == (str(error), ("what to do",))


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_documented_and_found_by_name(kind):
    assert kind.__doc__
    assert by_name(kind.__name__) is kind


@pytest.mark.parametrize("name", ["FromTheFuture", "Iterable", "by_name", "annotations", "", "int"])
def test_a_name_that_is_no_error_of_ours(name):
    assert by_name(name) is ShoalError


def test_the_trace_is_shown_below_the_message():
    assert str(ShoalError("it broke")) == "it broke"
    assert str(ShoalError("it broke", iter(["a", "b"]))) == (
        "it broke\n  the last events:\n    a\n    b"
    )
    assert ShoalError().message == ""


def test_whose_fault_is_a_type():
    assert not any(issubclass(each, UsageError) and issubclass(each, PeerError) for each in CLASSES)
