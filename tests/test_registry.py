"""Names, what is said about unknown ones, and plug-ins."""

import pytest

from shoal import registry as module
from shoal.errors import InvalidValue, UnknownName
from shoal.registry import Registry, unknown


class Point:
    """An installed entry point that counts how often it is loaded."""

    def __init__(self, name: str, thing: object) -> None:
        self.name = name
        self.thing = thing
        self.loads = 0

    def load(self) -> object:
        self.loads += 1
        return self.thing


@pytest.fixture
def installed(monkeypatch):
    """Entry points by group; what was asked for is in `installed["asked"]`."""
    groups: dict[str, list] = {"asked": []}

    def entry_points(*, group: str) -> list[Point]:
        groups["asked"].append(group)
        return groups.get(group, [])

    monkeypatch.setattr(module, "entry_points", entry_points)
    return groups


def shapes() -> Registry[int]:
    registry = Registry[int]("garden shape")
    registry.add("square", 4)
    registry.add("disc", 0)
    return registry


def test_an_added_name_is_found_and_listed_in_order(installed):
    known = shapes()
    assert known["square"] == 4
    assert known["disc"] == 0  # a value that is false is a value
    assert list(known) == ["disc", "square"]
    assert "disc" in known
    assert "cube" not in known
    assert installed["asked"] == []


def test_a_name_that_is_taken_is_refused():
    known = shapes()
    with pytest.raises(InvalidValue, match="garden shape 'square' is registered already"):
        known.add("square", 5)
    assert known["square"] == 4


def test_an_unknown_name_is_refused_with_the_nearest(installed):
    with pytest.raises(UnknownName) as caught:
        shapes()["sqare"]
    assert str(caught.value) == (
        "unknown garden shape 'sqare' (known: disc, square); did you mean 'square'?"
    )


def test_an_unknown_name_without_a_near_one_gets_no_suggestion():
    assert str(unknown("shape", "q", {"disc": 0})) == "unknown shape 'q' (known: disc)"
    assert str(unknown("shape", "q", [])) == "unknown shape 'q' (known: )"
    assert str(unknown("side", "4", [3, 2])) == "unknown side '4' (known: 2, 3)"


def test_registries_do_not_share_names():
    shapes().add("cube", 6)
    assert "cube" not in shapes()


def test_a_plugin_is_loaded_when_its_name_is_asked_for(installed):
    cube = Point("cube", 6)
    installed["shoal.garden_shapes"] = [cube]
    known = shapes()
    assert known["square"] == 4
    assert (cube.loads, installed["asked"]) == (0, [])
    assert known["cube"] == 6
    assert "cube" in known
    assert known["cube"] == 6
    with pytest.raises(UnknownName, match="known: cube, disc, square"):
        known["ball"]
    assert (cube.loads, installed["asked"]) == (1, ["shoal.garden_shapes"])


def test_a_plugin_cannot_replace_a_built_in(installed):
    installed["shoal.garden_shapes"] = [Point("square", 5), Point("cube", 6)]
    known = shapes()
    assert known["cube"] == 6
    assert known["square"] == 4


def test_what_is_loaded_last_may_register_an_unknown_name(installed, monkeypatch):
    monkeypatch.setattr(module, "_last_resorts", [])
    known, loads = shapes(), []

    def load() -> None:
        loads.append(1)
        known.add("cube", 6, again=True)

    module.when_unknown(load)
    assert known["square"] == 4
    assert not loads
    assert known["cube"] == 6
    with pytest.raises(UnknownName, match="unknown garden shape 'ball'"):
        known["ball"]
