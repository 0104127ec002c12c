"""`data.catalogue`: the names of data sets, and what each means."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from shoal.data.catalogue import datasets, find_source
from shoal.errors import UnknownName


def test_the_registry_lists_the_data_sets_with_a_model_each() -> None:
    assert list(datasets) == ["cifar10", "csv:PATH", "digits", "images:PATH", "mnist"]
    for name in datasets:
        source = datasets[name]
        assert (source.name, source.default_model in ("mlp", "cnn")) == (name, True)
        assert source.summary
        assert pickle.loads(pickle.dumps(source)) == source
    with pytest.raises(UnknownName, match=r"unknown dataset 'mnits'.*did you mean 'mnist'"):
        find_source("mnits")


def test_a_path_to_a_csv_file_needs_no_prefix(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("".join(f"{n},{n % 2}\n" for n in range(10)))
    plain, named = (
        find_source(name).load([tmp_path], offline=True) for name in ("t.csv", "csv:t.csv")
    )
    assert plain.train_x.equal(named.train_x)
    assert plain.classes == 2
