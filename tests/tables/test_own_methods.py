"""The decorator of access methods: which registry a method goes to, and what it refuses."""

import pytest
import torch

import shoal
from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.tables import Access, AccessMethod, TableSpec
from shoal.tables.dense.methods import BUILT_IN, access_methods, make, method_of
from shoal.tables.dense.shard import DenseShard
from shoal.tables.sparse.optimizers import row_methods


@pytest.fixture(autouse=True, scope="module")
def registered():
    """Other tests see the built-in methods only."""
    shoal.access_method("o.largest")(Largest)
    yield
    for registry in (access_methods, row_methods):
        for name in [each for each in registry if each.startswith("o.")]:
            del registry._known[name]


class Largest(AccessMethod):
    def apply(self, rows, slots, update, step, lr=None):
        torch.maximum(rows, update, out=rows)


def plain(row, state, update):
    for j in range(row.size):
        row[j] += update[j]


def test_a_class_is_a_method_of_dense_tables():
    rows = torch.tensor([1, 5])
    make(Access("o.largest")).apply(rows, {}, torch.tensor([3, 3]), 0)
    assert rows.tolist() == [3, 5]
    assert "o.largest" not in row_methods
    spec = TableSpec("t", rows=4, row_shape=(2,), access=Access("o.largest"), fragment_rows=2)
    assert DenseShard(spec, KeyRange(0, 4)).rows.sum() == 0
    assert method_of(spec).slots() == ()


def test_a_function_is_a_method_of_sparse_tables():
    assert shoal.access_method("o.plain")(plain) is plain
    assert "o.plain" in row_methods
    assert "o.plain" not in access_methods


def test_a_method_may_be_registered_again_as_its_module_may_be_imported_again():
    before = access_methods["o.largest"]

    class Again(Largest):
        pass

    assert shoal.access_method("o.largest")(Again) is Again is access_methods["o.largest"]
    shoal.access_method("o.largest")(before)
    assert access_methods["o.largest"] is Largest


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_methods_keep_their_names(name):
    before = access_methods[name]
    with pytest.raises(InvalidValue, match=f"'{name}' is built in"):
        shoal.access_method(name)(Largest)
    assert access_methods[name] is before


def test_what_is_no_method_is_refused():
    with pytest.raises(InvalidValue, match="dict is no subclass of shoal"):
        shoal.access_method("o.bad")(dict)
    with pytest.raises(InvalidValue, match="read, state belong to a function on a row"):
        shoal.access_method("o.bad", read=plain, state=lambda width: 1)(Largest)
    with pytest.raises(InvalidValue, match=r"Largest is registered as 'o\.largest' already"):
        shoal.access_method("o.bad")(Largest)
    with pytest.raises(InvalidValue, match="AccessMethod does not define apply"):
        shoal.access_method("o.bad")(AccessMethod)
    with pytest.raises(InvalidValue, match="write @shoal"):
        shoal.access_method(plain)
    assert "o.bad" not in access_methods
