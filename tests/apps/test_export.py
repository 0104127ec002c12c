"""Exported tables of models of clicks, and what their keys stand for."""

import csv
import logging

import numpy as np
import pytest
from safetensors.numpy import load_file

import shoal
from shoal.apps.ctr.columns import values
from shoal.apps.export import export
from shoal.errors import UnknownFormat
from shoal.keys import SLOTS, KeyRange
from shoal.runs.job import JobSpec
from shoal.runs.job_file import dump_job
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import save_shards
from shoal.tables.opening import open_shard
from shoal.tables.spec import TableSpec

pytestmark = pytest.mark.xdist_group("export")  # they share a run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on columns of every kind."""
    folder = tmp_path_factory.mktemp("run")
    random = np.random.default_rng(0)
    with (folder / "rows.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["city", "zip", "flag", "price", "session", "year", "clicked"])
        for number in range(600):
            city = ["Oslo", "São Paulo", 'a, "b"'][number % 3]
            price = "" if number % 5 == 0 else f"{random.lognormal(0, 2):.3f}"
            click = int(random.random() < (0.7 if city == "Oslo" else 0.2))
            rows.writerow([city, f"00{number % 4}12", number % 2 == 0, price, f"s{number}",
                           1990 + number % 30, click])  # fmt: skip
    options = {"label": "clicked", "l1": 0, "model": "fm", "checkpoint_every": 2, "servers": 2}
    with pytest.warns(UserWarning) as warned:  # noqa: PT030  they are compared
        result = shoal.ctr.train(
            folder / "rows.csv", out=str(folder / "runs"), **options, workers=2
        )
    return result, [str(each.message) for each in warned]


def names_in(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.real
def test_columns_that_are_no_features_are_warned_of(run):
    result, warned = run
    ids = [text for text in warned if "values of these columns occur once: session (600 v" in text]
    codes = [text for text in warned if "look like codes or ids" in text]
    assert len(ids) == len(codes) == 1
    assert "year (30 values of similar size)" in codes[0]
    assert '--categorical "city,zip,flag" --numeric "price,year"' in ids[0]
    assert warned == result.metrics["warnings"]


@pytest.mark.real
@pytest.mark.parametrize("form", ["safetensors", "text"])
@pytest.mark.parametrize("of", ["run", "shards", "checkpoint"])
def test_every_key_of_a_model_has_its_column_and_value(tmp_path, run, form, of):
    folder = run[0].run_dir
    if of == "shards":
        folder = RunFolder(folder).shards
    if of == "checkpoint":
        folder = max(RunFolder(folder).checkpoints.glob("0*"))
    out = tmp_path / ("model.safetensors" if form == "safetensors" else "model")
    *rows, names = export(folder, form, out)
    if form == "safetensors":
        assert (rows, names) == ([out], tmp_path / "model.keys.csv")
        keys = load_file(out)["linear.keys"].view(np.uint64).tolist()
    else:
        assert names == out / "keys.csv"
        lines = (out / "linear.txt").read_text().splitlines()
        keys = [int(line.split()[0]) for line in lines]
    found = names_in(names)
    assert sorted({int(each["key"]) for each in found}) == keys
    categories = [each for each in found if not each["low"]]
    assert {(each["column"], each["value"]) for each in categories} >= {
        ("city", "São Paulo"), ("city", 'a, "b"'), ("zip", "00112"), ("flag", "true")}  # fmt: skip
    for each in categories:
        assert shoal.ctr.key(each["column"], each["value"]) == int(each["key"])
    prices = {int(each["key"]) for each in found if each["column"] == "price"}
    assert shoal.ctr.key("price", 1.0, numeric=True) in prices


@pytest.mark.real
def test_what_a_worker_has_not_kept_is_said(tmp_path, run, monkeypatch, caplog):
    seen = values.read_seen(RunFolder(run[0].run_dir).values(0))
    assert all(each.all for each in seen.values())
    column = values.ColumnKeys("city", 1)
    column.of(["Oslo", "Bern"])
    path = RunFolder(run[0].run_dir).values(0)
    before = path.read_bytes()
    try:
        values.write_seen(path, {"city": column})
        with caplog.at_level(logging.WARNING, "shoal"):
            *_, names = export(run[0].run_dir, "safetensors", tmp_path / "m.safetensors")
    finally:
        path.write_bytes(before)
    assert f"{names} lacks values of city" in caplog.text


@pytest.mark.real
def test_tables_of_a_run_with_keys_of_another_rule_are_refused(tmp_path, run):
    job = RunFolder(run[0].run_dir).job
    before = job.read_text()
    try:
        job.write_text(before.replace("key_rule = 2\n", ""))
        with pytest.raises(UnknownFormat, match="the run's keys follow rule 1"):
            export(run[0].run_dir, "safetensors", tmp_path / "m.safetensors")
        assert not list(tmp_path.iterdir())
    finally:
        job.write_text(before)


def test_tables_of_these_names_of_another_run_have_no_names(tmp_path):
    specs = [TableSpec(name, 0, (1,), kind="sparse") for name in ("bias", "linear")]
    shards = [(0, open_shard(spec, KeyRange(0, SLOTS))) for spec in specs]
    (tmp_path / "shards").mkdir()
    save_shards(tmp_path / "shards", 0, shards)
    assert len(export(tmp_path, "text", tmp_path / "out")) == 2  # it has no job
    RunFolder(tmp_path).write_job(dump_job(JobSpec()))
    assert len(export(tmp_path, "text", tmp_path / "out")) == 2


@pytest.mark.real
def test_keys_of_lines_need_no_names(tmp_path):
    (tmp_path / "rows.txt").write_text("1 3:1\n0 4:1\n" * 50)
    result = shoal.ctr.train(tmp_path / "rows.txt", out=str(tmp_path / "runs"))
    assert len(export(result.run_dir, "text", tmp_path / "out")) == 2
    assert not RunFolder(result.run_dir).values(0).exists()
