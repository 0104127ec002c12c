"""What a run has once: the worker of lowest rank writes it, or the next if that one dies."""

from types import SimpleNamespace

from shoal.runs.worker import written_by_first


class Seen:
    """A client of rank 1, in a group whose first members die at barriers."""

    rank = 1

    def __init__(self, *groups):
        self._groups = list(groups)  # ranks in each view
        self.entered = []

    options = SimpleNamespace(group="")

    @property
    def view(self):
        members = [SimpleNamespace(rank=rank) for rank in self._groups[0]]
        return SimpleNamespace(id=len(self._groups), group=lambda name: members)

    def barrier(self, name):
        self.entered.append(name)

    def await_until(self, true):
        """The view without the dead worker comes after the barrier."""
        assert not true()
        del self._groups[0]
        assert true()


def written(client, before=False, replaces=False, beside=()):
    found = [True] if before else []
    there = lambda: bool(found)  # noqa: E731
    written_by_first(client, beside, lambda: found.append(True), there, "written", replaces)
    return len(found)


def test_the_first_writes_and_the_others_wait():
    assert written(Seen([1, 2])) == 1
    assert written(Seen([0, 1]), before=True) == 1  # by another


def test_one_that_has_replaced_another_writes_again():
    """Those that have ended before have written without its training."""
    assert written(Seen([1]), before=True, replaces=True) == 2
    assert written(Seen([0, 1]), before=True, replaces=True) == 1


def test_the_next_writes_what_the_first_has_not():
    client = Seen([0, 1], [1])
    assert written(client) == 1
    assert client.entered == ["written", "written"]


def test_the_first_of_each_host_writes():
    assert written(Seen([0, 1, 2]), beside=(1, 2)) == 1
    assert written(Seen([0, 1, 2]), before=True, beside=(0, 1)) == 1  # by rank 0
    assert written(Seen([0, 1, 2], [1, 2]), beside=(0, 1)) == 1  # it has died
