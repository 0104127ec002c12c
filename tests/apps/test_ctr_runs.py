"""Whole runs of `shoal train ctr`, and `shoal predict`."""

import json
import subprocess
import sys
from math import exp
from time import monotonic

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import shoal as shoal_
from shoal.apps import weights
from shoal.apps.ctr import sample
from shoal.apps.ctr.spec import CtrSpec
from shoal.cli import main
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, UsageError
from shoal.runs.job_file import dump_job
from shoal.storage.run_folder import RunFolder
from tests.real.waiting import until


def file_of(folder, text, name="rows.txt"):
    path = folder / name
    path.write_text(text)
    return path


def shoal(*arguments, folder, command=("train", "ctr")):
    return subprocess.run(
        [sys.executable, "-m", "shoal", *command, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.real
@pytest.mark.parametrize("model", ["lr", "fm"])
def test_a_ctr_run_learns_the_sample(tmp_path, model):
    """The sample's own chances have an AUC of about 0.77; chance has 0.5."""
    ended = shoal("--model", model, "--servers", 2, "--json", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert summary["rows"] == sample.TRAIN
    assert summary["test"]["auc"] > 0.65
    assert summary["test"]["log_loss"] < summary["progressive"]["log_loss"] + 0.02
    assert summary["skipped"] == 0


def refused(*arguments, command=("train", "ctr")):
    """What a command that starts nothing says; it is not worth a process."""
    ended = CliRunner().invoke(main, [*command, *map(str, arguments)])
    assert ended.exit_code == 2, arguments
    assert isinstance(ended.exception, SystemExit)
    return " ".join(ended.stderr.split())


@pytest.mark.real
def test_predict_gives_the_runs_own_predictions(tmp_path):
    ended = shoal("--model", "deepfm", "--servers", 2, "--json", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    run = tmp_path / summary["run_dir"]
    predict = ("predict",)
    told = shoal(run, run / "sample_test.txt", "--json", folder=tmp_path, command=predict)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["figures"] == pytest.approx(summary["test"])
    with np.load(run / "workers" / "0" / "test.npz") as test:
        expected = 1 / (1 + np.exp(-test["logits"].astype(float)))
    np.testing.assert_allclose(found["chances"], expected, rtol=1e-5)
    before = (run / "sample_test.txt").read_text()
    (run / "bad.txt").write_text(before + "x 3:1\n")
    for words, says in (
        ((tmp_path, run / "bad.txt"), "is not the folder of a run"),
        ((run, run / "none.txt"), "none.txt"),
        ((run, run / "bad.txt"), "expected a label"),
        ((run, run / "sample_test.txt", "--out", "no/such/folder"), "cannot be written"),
        ((run, run / "sample_test.txt", "--out", run / "sample_test.txt"), "that is read"),
        ((run, run / "sample_test.txt", "--format", "criteo"), "trained on dummy, and keys of"),
    ):
        assert says in refused(*words, command=predict)


@pytest.mark.real
@pytest.mark.parametrize("model", ["lr", "deepfm"])
def test_a_run_from_python_and_its_scorer(tmp_path, model):
    options = {"model": model, "servers": 2, "out": str(tmp_path)}
    result = shoal_.ctr.train(**options, batch_size=32, epochs=2, checkpoint_every=20)
    assert result.metrics["rows"] == 2 * sample.TRAIN
    lines = (result.run_dir / "sample_test.txt").read_text().splitlines()
    with np.load(result.run_dir / "workers" / "0" / "test.npz") as test:
        expected = 1 / (1 + np.exp(-test["logits"].astype(float)))
    with shoal_.ctr.Scorer(result.run_dir) as scorer:
        assert not scorer.training
        np.testing.assert_allclose(scorer.predict(lines), expected, rtol=1e-5)
        rows = [line.partition(" ")[2] for line in lines[:3]]
        found = scorer.predict(rows, labelled=False)
        np.testing.assert_allclose(found, expected[:3], rtol=1e-5)
        with pytest.raises(DataCorrupt, match="rows: line 2"):
            scorer.predict(["1 3", "x"])
    scorer.close()
    with pytest.raises(UsageError, match="closed"):
        scorer.predict(lines)
    for bound in ({"max_age_s": -1}, {"max_rows": 0}):
        with pytest.raises(InvalidValue, match=f"{next(iter(bound))} is .* has to be"):
            shoal_.ctr.Scorer(result.run_dir, **bound)
    more = shoal_.ctr.train(resume=str(result.run_dir), epochs=3)
    assert more.metrics["model"] == model
    assert more.metrics["rows"] == sample.TRAIN  # of the third epoch


def test_options_from_python_are_checked(tmp_path):
    with pytest.raises(InvalidValue, match="nothing"):
        shoal_.ctr.train(nothing=1)
    with pytest.raises(InvalidValue, match="epochs"):
        shoal_.ctr.train(epochs=0)
    with pytest.raises(DataMissing):
        shoal_.ctr.train(tmp_path / "none.txt", out=str(tmp_path))
    with pytest.raises(InvalidValue, match="train: expected `str`, got `array`"):
        shoal_.ctr.train(["a.txt", "b.txt"])


@pytest.mark.real
def test_rows_of_one_class_are_said(tmp_path):
    train = file_of(tmp_path, "x,y,label\n" + "1,2,click\n3,4,none\n" * 50, "rows.csv")
    options = {"label": "label", "numeric": ["x", "y"], "out": str(tmp_path)}
    with pytest.warns(UserWarning, match=r"same label.*'Click' is no row"):
        result = shoal_.ctr.train(train, positive="Click", **options)
    assert result.metrics["progressive"]["auc"] is None
    told = CliRunner().invoke(
        main, ["train", "ctr", str(train), "--positive", "Click", "--out", str(tmp_path)]
    )
    assert told.exit_code == 0
    assert "warning: all rows have the same label" in told.output
    assert shoal_.ctr.train(train, positive="click", **options).metrics["warnings"] == []
    with pytest.raises(DataMissing):
        shoal_.ctr.Scorer(tmp_path)


def test_a_run_that_was_killed_has_no_model(tmp_path):
    """It is known at once: nobody holds the file of the scheduler's address."""
    folder = RunFolder(tmp_path)
    folder.write_job(dump_job(CtrSpec(), "ctr"))
    folder.scheduler.write_text(f"unix://{tmp_path}/gone.sock")
    with pytest.raises(DataMissing, match="was killed: it has no model, at most checkpoints"):
        shoal_.ctr.Scorer(tmp_path)


@pytest.mark.real
@pytest.mark.parametrize("model", ["lr", "deepfm"])
def test_a_scorer_follows_a_run_under_way(tmp_path, model):
    """Until the run's workers have finished; the run ends when the scorer has left."""
    attach = shoal_.ctr.Scorer  # imports torch, which may take longer than the run
    epochs = {"lr": 40, "deepfm": 6}[model]
    words = ("--model", model, "--epochs", str(epochs), "--title", "followed", "--json")
    run = subprocess.Popen(
        [sys.executable, "-m", "shoal", "train", "ctr", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    until(lambda: [*tmp_path.glob("shoal-runs/followed-*/scheduler")])
    [folder] = tmp_path.glob("shoal-runs/followed-*")
    rows, seen = ["1 3 5", "2 4"], []
    with attach(folder, max_age_s=0.0) as scorer:
        while scorer.training:
            seen.append(scorer.predict(rows, labelled=False).tolist())
        trained = scorer.predict(rows, labelled=False)
        assert run.poll() is None
    told, _ = run.communicate(timeout=60)
    assert len({*map(tuple, seen)}) > 5  # the model changed meanwhile
    assert json.loads(told)["rows"] == epochs * sample.TRAIN
    with shoal_.ctr.Scorer(folder) as scorer:
        np.testing.assert_allclose(scorer.predict(rows, labelled=False), trained, rtol=1e-6)


@pytest.mark.real
def test_a_scorer_says_at_once_that_its_run_was_ended(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-m", "shoal", "train", "ctr", "--epochs", "1000", "--title", "ended"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: [*tmp_path.glob("shoal-runs/ended-*/scheduler")])
    [folder] = tmp_path.glob("shoal-runs/ended-*")
    with shoal_.ctr.Scorer(folder, max_age_s=0.0) as scorer:
        scorer.predict(["1 3"])
        run.terminate()
        assert run.wait(30) == 143
        ended = monotonic()
        until(lambda: monotonic() > ended + weights.CHECK_S)
        began = monotonic()
        with pytest.raises(DataMissing, match="no run is under way"):
            scorer.predict(["1 3"])
    assert monotonic() - began < weights.PROBE_S


@pytest.mark.real
def test_logistic_regression_finds_the_penalised_optimum(tmp_path):
    """Within 0.002 of scikit-learn's log loss, with the same penalty."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    random = np.random.default_rng(0)
    weights = random.normal(size=30)
    files, sets = [], []
    for name, rows in (("train", 4000), ("test", 2000)):
        x = random.random((rows, 30)) < 0.2
        y = random.random(rows) < [1 / (1 + exp(-each)) for each in x @ weights]
        text = "".join(
            f"{int(label)} {' '.join(map(str, np.flatnonzero(row)))}\n"
            for label, row in zip(y, x, strict=True)
        )
        files.append(file_of(tmp_path, text, name))
        sets.append((x, y))
    options = (
        "--l1",
        0,
        "--l2",
        1,
        "--epochs",
        20,
        "--batch-size",
        50,
        "--strategy",
        "sync",
        "--json",
    )
    ended = shoal(files[0], "--test", files[1], *options, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])["test"]["log_loss"]
    best = LogisticRegression(C=1.0).fit(*sets[0])
    optimum = log_loss(sets[1][1], best.predict_proba(sets[1][0])[:, 1])
    assert abs(found - optimum) < 0.002


@pytest.mark.real
@pytest.mark.parametrize("model", ["lr", "deepfm"])
def test_training_stops_when_the_model_becomes_no_better(tmp_path, model):
    """The labels of the rows to validate are drawn: whatever is learnt makes them less likely."""
    random = np.random.default_rng(1)
    train = file_of(tmp_path, "1 1 2\n0 3 4\n" * 300)
    valid = file_of(tmp_path, "".join(f"{random.integers(2)} 1 2\n" for _ in range(200)), "v.txt")
    words = ("--valid", valid, "--test", valid, "--model", model, "--epochs", 9, "--json")
    for patience in (1, 3):
        ended = shoal(train, *words, "--patience", patience, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        summary = json.loads(ended.stdout.splitlines()[-1])
        losses = [each["log_loss"] for each in summary["valid"]]
        assert [each["epoch"] for each in summary["valid"]] == [*range(1, len(losses) + 1)]
        best = losses.index(min(losses))
        assert len(losses) == best + 1 + patience < 9
        assert summary["best_epoch"] == best + 1
        assert summary["rows"] == 600 * len(losses)  # of both workers
        assert summary["test"]["log_loss"] == pytest.approx(losses[-1], rel=1e-5)


@pytest.mark.real
def test_training_goes_on_while_the_model_becomes_better(tmp_path):
    train = file_of(tmp_path, "1 1 2\n0 3 4\n" * 40)
    ended = shoal(train, "--valid", train, "--epochs", 4, "--json", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    losses = [each["log_loss"] for each in summary["valid"]]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


def test_validation_that_cannot_be_is_refused(tmp_path):
    train = file_of(tmp_path, "1 1\n0 2\n")
    assert "give --epochs N" in refused(train, "--valid", train)
    assert "of --valid: give it" in refused(train, "--patience", 3)
    table = file_of(tmp_path, "x,label\n1,1\n", "v.csv")
    other = refused(train, "--valid", table, "--epochs", 2)
    assert "it is csv, and the run's format is dummy" in other
    for strategy in ("sync", "ssp"):
        words = (train, "--valid", train, "--epochs", 2, "--strategy", strategy)
        assert "--valid needs strategy 'asgd'" in refused(*words)
    assert "none.txt" in refused(train, "--valid", tmp_path / "none.txt", "--epochs", 2)


@pytest.mark.real
def test_memory_is_bounded_and_evictions_are_counted(tmp_path):
    options = ("--max-rows", 300, "--evict", "lfu", "--servers", 2, "--json")
    options += ("--strategy", "ssp", "--staleness", 2)
    ended = shoal(*options, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    linear = summary["tables"]["linear"]
    assert linear["rows"] <= 301  # a share of each server, rounded up
    assert linear["evicted"] > 500
    assert summary["tables"]["bias"] == {"rows": 1, "evicted": 0}
    assert summary["test"]["auc"] > 0.6


@pytest.mark.real
def test_codecs_and_kept_lists_send_fewer_bytes_and_learn_as_well(tmp_path):
    how = {"model": "fm", "epochs": 2, "workers": 2, "out": str(tmp_path), "progress": False}
    plain = shoal_.ctr.train(**how).metrics
    small = shoal_.ctr.train(codec="int:8", server_codec="fp16", key_lists="cached", **how).metrics
    assert small["bytes_pushed"] < 0.5 * plain["bytes_pushed"]
    assert small["bytes_pulled"] < 0.7 * plain["bytes_pulled"]
    assert small["test"]["auc"] > plain["test"]["auc"] - 0.02


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "lr", "codec": "fp16"}, "are for factors, and model 'lr' has none"),
        ({"model": "fm", "codec": "onebit"}, "needs a residual"),
        ({"model": "fm", "factors": 10, "server_codec": "int:8"}, "take fp16 or bf16"),
    ],
)
def test_codecs_of_factors_are_checked_before_the_start(tmp_path, options, words):
    with pytest.raises(InvalidValue, match=words):
        shoal_.ctr.train(out=str(tmp_path), progress=False, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.real
def test_testing_and_predicting_evict_no_row(tmp_path):
    train = file_of(tmp_path, "1 1\n0 2\n" * 50)
    unseen = "".join(f"0 {key}\n" for key in range(100, 400))
    test = file_of(tmp_path, "1 1\n0 2\n" + unseen + "1 1\n0 2\n", "test.txt")
    options = ("--max-rows", 16, "--strategy", "ssp", "--staleness", 1, "--json")
    ended = shoal(train, "--test", test, *options, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert summary["tables"]["linear"] == {"rows": 2, "evicted": 0}
    logits = np.load(tmp_path / summary["run_dir"] / "workers" / "0" / "test.npz")["logits"]
    assert logits[0] == logits[-2] > 0.05
    assert logits[1] == logits[-1] < -0.05


@pytest.mark.real
@pytest.mark.parametrize("options", [(), ("--max-rows", 300), ("--model", "deepfm")], ids=str)
def test_a_ctr_run_resumes_exactly_from_its_checkpoint(tmp_path, options):
    settings = ["--strategy", "sync", "--epochs", 2, "--checkpoint-every", 20, *options]
    whole = summary_of(shoal(*settings, "--servers", 2, "--json", folder=tmp_path))
    run = ["--resume", whole["run_dir"], "--resume-at", 40]
    resumed = summary_of(shoal(*run, "--json", folder=tmp_path))
    assert 0 < resumed["rows"] < whole["rows"]
    assert resumed["test"] == whole["test"]
    assert resumed["tables"]["linear"]["rows"] == whole["tables"]["linear"]["rows"]


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path):
    assert "is not the folder of a run" in refused("--resume", tmp_path)


def summary_of(ended):
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.real
def test_a_run_ends_with_the_malformed_line(tmp_path):
    path = file_of(tmp_path, "1 3\n" * 50 + "nonsense\n")
    ended = shoal(path, folder=tmp_path)
    assert ended.returncode == 2
    assert "line 51: expected a label" in ended.stderr
    again = shoal(path, "--skip-bad-lines", 1, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "lines left out" in again.stdout
    for wrong in (("none.txt",), ("--model", "svm"), ("--hash-bits", "99"), ("--lr", "0")):
        assert refused(*wrong)


@pytest.fixture
def table(tmp_path):
    """A CSV file with a header, and the same rows in a folder of two Parquet files."""
    random = np.random.default_rng(3)
    kinds = random.choice(list("abcdef"), 1200)
    sizes = random.lognormal(0, 2, 1200).round(3)
    chances = np.where(np.isin(kinds, ["a", "b"]), 0.7, 0.2) + 0.2 * (sizes > 1)
    clicked = np.where(random.random(1200) < chances, "yes", "no")
    lines = [f"{k},{s},{c}\n" for k, s, c in zip(kinds, sizes, clicked, strict=True)]
    path = file_of(tmp_path, "kind,size,clicked\n" + "".join(lines), "rows.csv")
    (tmp_path / "parts").mkdir()
    for number, rows in enumerate((slice(0, 640), slice(640, None))):
        part = pa.table({"kind": kinds[rows], "size": sizes[rows], "clicked": clicked[rows]})
        pq.write_table(part, tmp_path / "parts" / f"{number}.parquet")
    return path, tmp_path / "parts"


@pytest.mark.real
def test_csv_and_parquet_give_the_same_figures_and_predictions(tmp_path, table):
    columns = ("--label", "clicked", "--positive", "yes", "--workers", 1, "--json")
    runs = [summary_of(shoal(each, "--test", each, *columns, folder=tmp_path)) for each in table]
    assert runs[0]["test"] == runs[1]["test"]
    assert runs[0]["test"]["auc"] > 0.7
    assert {run["rows"] for run in runs} == {1200}
    path, folder = table
    new = file_of(tmp_path, "size,kind\n2.5,a\n,zz\n0.01,f\n", "new.csv")  # no labels, other order
    told = shoal(runs[0]["run_dir"], new, "--json", folder=tmp_path, command=("predict",))
    assert told.returncode == 0, told.stderr
    chances = json.loads(told.stdout)["chances"]
    assert chances[0] > chances[2]
    assert json.loads(told.stdout)["figures"] == {}
    other = shoal(runs[1]["run_dir"], new, folder=tmp_path, command=("predict",))
    assert [*map(float, other.stdout.splitlines())] == chances  # that run was trained on Parquet
    refusal = (tmp_path / runs[1]["run_dir"], path, "--format", "libsvm")
    assert "trained on parquet, and keys of libsvm" in refused(*refusal, command=("predict",))
    again = shoal(runs[1]["run_dir"], folder, folder=tmp_path, command=("predict",))
    assert len(again.stdout.splitlines()) >= 1200, again.stderr
