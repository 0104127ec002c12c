"""A worker of `shoal train ctr`: what it goes on with, and what it has none of."""

import json

import pytest

import shoal
from shoal.apps.ctr.scores import scores_before
from shoal.errors import DataCorrupt
from shoal.storage.run_folder import RunFolder


@pytest.fixture
def train(tmp_path):
    """Train on so many rows, with a checkpoint after each step."""
    path = tmp_path / "rows.txt"

    def made(rows, **options):
        path.write_text("1 1 2\n0 3 4\n" * (rows // 2))
        return shoal.ctr.train(path, out=str(tmp_path), checkpoint_every=1, **options)

    return made


@pytest.mark.real
def test_a_resumed_run_validates_the_epochs_that_it_trains(train, tmp_path):
    first = train(80, valid=str(tmp_path / "rows.txt"), patience=2, epochs=3)
    rest = shoal.ctr.train(resume=str(first.run_dir), epochs=5)
    assert [each["epoch"] for each in rest.metrics["valid"]] == [1, 2, 3, 4, 5]
    assert rest.metrics["valid"][:3] == first.metrics["valid"]
    assert rest.metrics["rows"] == 160


@pytest.mark.real
def test_a_worker_may_have_no_batch_before_and_after_a_checkpoint(train):
    """Of two workers, the second one."""
    first = train(10, epochs=2)
    rest = shoal.ctr.train(resume=str(first.run_dir), epochs=3)
    assert [each["rows"] for each in rest.metrics["by_worker"]] == [10, 0]
    assert rest.metrics["by_worker"][0]["clock"] == 3


@pytest.mark.real
def test_a_run_that_patience_has_ended_stays_ended(train, tmp_path):
    """Unless it is given more: what was scored before counts."""
    valid = tmp_path / "valid.txt"
    valid.write_text("0 1 2\n1 3 4\n" * 40)  # the labels are the other way round
    first = train(80, valid=str(valid), epochs=9)
    assert [each["epoch"] for each in first.metrics["valid"]] == [1, 2]
    again = shoal.ctr.train(resume=str(first.run_dir))
    assert again.metrics["rows"] == 0
    assert again.metrics["valid"] == first.metrics["valid"]
    more = shoal.ctr.train(resume=str(first.run_dir), patience=3)
    assert [each["epoch"] for each in more.metrics["valid"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("valid", [3, [{"epoch": 1}], [{"epoch": "1", "auc": 0.5, "log_loss": 1}]])
def test_damaged_scores_are_named(tmp_path, valid):
    run = RunFolder(tmp_path)
    run.worker(0)
    (tmp_path / "workers" / "0" / "result.json").write_text(json.dumps({"valid": valid}))
    with pytest.raises(DataCorrupt, match="the scores of its epochs"):
        scores_before(run)
    assert scores_before(RunFolder(tmp_path / "none")) == []
