"""Applications whose worker is killed: others do its batches, or another takes its place."""

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from shoal.apps.ctr.command import CtrApplication
from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.word2vec.command import WordsApplication
from shoal.apps.word2vec.spec import WordsSpec
from shoal.errors import InvalidValue
from shoal.runs.run import run_here
from tests.real.texts import pattern

STEPS = 3  # lines of the event log, after which a worker is killed


def killing(application, victim):
    """The application, with a progress display that kills a worker while it trains."""

    class Killing(type(application)):
        @contextmanager
        def display(self, console, folder):
            killed = []

            def tick():
                lines = f'"node":"{victim}","step":'
                if not killed and folder.events.read_text().count(lines) >= STEPS:
                    killed.append(json.loads(folder.pids.read_text())[victim])
                    os.kill(killed[0], signal.SIGKILL)

            with super().display(console, folder):
                yield tick
            assert killed

    application.__class__ = Killing
    return application


CTR = {"epochs": 10, "model": "lr"}
DEEP = {"model": "deepfm", "strategy": "sync", "epochs": 3}


@pytest.mark.real
@pytest.mark.parametrize("victim", ["worker-0", "worker-1"])
@pytest.mark.parametrize(
    "more", [{}, {"model": "deepfm", "strategy": "sync", "epochs": 3}], ids=str
)
def test_the_others_do_the_rows_of_a_killed_worker(tmp_path, victim, more):
    given = {**CTR, **more, "out": str(tmp_path), "on_worker_loss": "reassign"}
    whole = run_here(CtrApplication(CtrSpec(**given)))
    summary = run_here(killing(CtrApplication(CtrSpec(**given)), victim))
    assert summary["lost"] == [victim]
    assert summary["may_repeat"] == ("strategy" not in more and summary["reassigned"] > 0)
    assert summary["rows"] < whole["rows"]  # without those that the victim did
    assert summary["test"]["auc"] == pytest.approx(whole["test"]["auc"], abs=0.02)
    assert [each["epochs"] for each in summary["by_worker"]] == [given["epochs"]]


@pytest.mark.real
def test_a_killed_worker_of_ctr_is_replaced_by_one_that_goes_on(tmp_path):
    import sklearn.metrics  # noqa: F401  the display imports it, while workers train already

    spec = CtrSpec(**CTR, out=str(tmp_path), on_worker_loss="replace")
    summary = run_here(killing(CtrApplication(spec), "worker-1"))
    assert summary["lost"] == ["worker-1"]
    assert len(summary["by_worker"]) == 2
    assert [each["epochs"] for each in summary["by_worker"]] == [10, 10]


@pytest.mark.real
@pytest.mark.parametrize("policy", ["reassign", "replace"])
def test_word_vectors_are_trained_although_a_worker_is_killed(tmp_path, policy):
    how = {"epochs": 6, "block_words": 500, "out": str(tmp_path), "on_worker_loss": policy}
    summary = run_here(killing(WordsApplication(WordsSpec(**how)), "worker-0"))
    assert summary["lost"] == ["worker-0"]
    assert len(summary["by_worker"]) == (2 if policy == "replace" else 1)
    assert Path(summary["vectors"]).stat().st_size > 630 * 100 * 4


@pytest.mark.real
def test_a_run_with_leases_is_resumed_where_it_was(tmp_path):
    how = {**CTR, "out": str(tmp_path), "on_worker_loss": "reassign", "checkpoint_every": 40}
    first = run_here(CtrApplication(CtrSpec(**{**how, "epochs": 2})))
    again = CtrSpec(**how, resume=first["run_dir"])
    summary = run_here(CtrApplication(again))
    assert summary["rows"] == 8 * first["rows"] / 2  # each row of eight more epochs once
    for changed in ({"batch_size": 32}, {"seed": 3}, {"shuffle": 0}):
        with pytest.raises(
            InvalidValue, match=pattern("application_losses.leases_of_other_batches")
        ):
            run_here(CtrApplication(msgspec.structs.replace(again, **changed)))


def test_what_cannot_go_on_without_a_worker_is_refused(tmp_path):
    with pytest.raises(InvalidValue, match=pattern("application_losses.validated_together")):
        CtrSpec(train="a", valid="b", epochs=2, on_worker_loss="drop")
    for spec in (CtrSpec, WordsSpec):
        with pytest.raises(InvalidValue, match=pattern("application_losses.backup_without_leases")):
            spec(slow_workers="backup")
    before = CtrSpec(resume="run", on_worker_loss="reassign")
    with pytest.raises(InvalidValue, match=pattern("application_losses.trained_without_leases")):
        CtrApplication(msgspec.structs.replace(before, resume=str(tmp_path))).ledger_before(4)
