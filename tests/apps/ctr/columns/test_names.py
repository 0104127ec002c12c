"""What the keys of a run's tables stand for."""

import csv

import numpy as np

from shoal.apps.ctr.columns.keys import key
from shoal.apps.ctr.columns.names import KeyName, names_of, write_names
from shoal.apps.ctr.columns.values import ColumnKeys
from shoal.apps.ctr.spec import CtrSpec

SPEC = CtrSpec(format="csv", categorical="city,zip", numeric="price")
CITIES = ["Oslo", "São, Paulo", 'a "b"\nc', "Bern"]


def seen(**columns):
    found = {}
    for name, texts in columns.items():
        column = ColumnKeys(name, 100)
        column.of(texts)
        found[name] = column.seen()
    return found


def names(keys, spec=SPEC):
    found = seen(city=CITIES, zip=["007", "7.0"])
    return list(names_of(spec, found, np.unique(np.array(keys, np.uint64))))


def test_keys_of_tables_have_names():
    keys = [key("city", "Oslo"), key("zip", 7), key("price", -100, numeric=True), 12345]
    found = names(keys)
    assert {each.key for each in found} == {*keys[:3]}
    assert [(each.column, each.value) for each in found[:2]] == [("city", "Oslo"), ("zip", "7")]
    price = found[2]
    assert (price.column, price.value) == ("price", "")
    assert price.low < -100 < price.high < price.low * 0.8


def test_numbers_are_named_without_having_been_kept():
    numbers = [0, 1, -1, 1e-300, 1e300, 17.5]
    found = names([key("price", number, numeric=True) for number in numbers])
    bounds = [(each.low, each.high) for each in found]
    assert len(bounds) == len(numbers)
    assert all(any(low <= number <= high for low, high in bounds) for number in numbers)


def test_no_table_and_no_value():
    assert names([]) == []
    assert list(names_of(SPEC, {}, np.array([1], np.uint64))) == []
    none = CtrSpec(format="csv", numeric="x")
    assert list(names_of(none, {}, np.empty(0, np.uint64))) == []


def test_hashed_keys_may_have_several_names():
    spec = CtrSpec(format="csv", categorical="city,zip", hash_bits=1)
    found = names([0, 1], spec)
    assert len(found) == len(CITIES) + 2
    for each in found:
        assert key(each.column, each.value, hash_bits=1) == each.key


def test_names_are_written_as_csv_that_reads_back(tmp_path):
    path = tmp_path / "keys.csv"
    keys = [*(key("city", each) for each in CITIES), key("price", 3, numeric=True)]
    found = names(keys)
    write_names(path, iter(found))
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [*lines[0]] == ["key", "column", "value", "low", "high"] == [*KeyName.__struct_fields__]
    assert {line["value"] for line in lines} == {*CITIES, ""}
    for line, name in zip(lines, found, strict=True):
        if line["low"]:
            middle = (float(line["low"]) + float(line["high"])) / 2
            assert key(line["column"], middle, numeric=True) == int(line["key"]) == name.key
        else:
            assert key(line["column"], line["value"]) == int(line["key"]) == name.key
