"""Runs on machines that share no folder: what they leave is one run folder, as on one machine."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from shoal.apps.ctr.command import CtrApplication
from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.script import ScriptApplication
from shoal.apps.script_job import ScriptRun
from shoal.apps.train.command import TrainApplication
from shoal.apps.word2vec.command import WordsApplication
from shoal.apps.word2vec.spec import WordsSpec
from shoal.engines.hosts import Hosts
from shoal.errors import ProcessDied
from shoal.reports.events import read_events
from shoal.runs.job import continued, from_mapping
from shoal.runs.run import run_here
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.run_folder import RunFolder
from shoal.testing.machines import MachinesEngine
from tests.tools.host_loss import Machines

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs namespaces"),
]
DIGITS = {"data": "digits", "workers": 2, "servers": 2, "epochs": 2, "seed": 1}


@pytest.fixture
def machines(tmp_path):
    """Runs an application on two machines; worker and server r are on machine r."""
    with Hosts("ab") as hosts:

        def place(name):
            number = name.partition("-")[2]
            return "ab"[int(number or 0) % 2]

        yield lambda application: run_here(
            application, engine=MachinesEngine(hosts, tmp_path / "machines", place)
        )


@pytest.fixture
def digits(machines, tmp_path):
    def train(**more):
        job = DIGITS | {"out": str(tmp_path / "runs")} | more
        job = continued(Path(job["resume"]), job) if "resume" in job else job
        return machines(TrainApplication(from_mapping(job), []))

    return train


def losses(run):
    """By worker and step; those of a run on one machine are the same."""
    events = read_events(RunFolder(Path(run)).events, torn=True)
    return {
        (each["node"], each["epoch"], each["step"]): each["loss"]
        for each in events
        if each["kind"] in ("step", "eval")
    }


def test_a_run_leaves_what_it_leaves_on_one_machine(digits, tmp_path):
    apart = digits(checkpoint_every=10, title="apart")
    here = run_here(
        TrainApplication(
            from_mapping(
                DIGITS | {"out": str(tmp_path / "runs"), "checkpoint_every": 10, "title": "here"}
            ),
            [],
        )
    )
    assert losses(apart["run_dir"]) == losses(here["run_dir"])
    left = [
        {each.relative_to(run).as_posix() for each in run.rglob("*") if each.is_file()}
        for run in (Path(apart["run_dir"]), Path(here["run_dir"]))
    ]
    assert left[0] == left[1]
    own = [*(tmp_path / "machines").rglob("events.jsonl")]
    assert len(own) == 2, "the machines share a folder"
    assert "left_on_hosts" not in apart


def test_a_run_is_resumed_on_machines_that_have_none_of_its_files(digits, tmp_path):
    """Each gets the headers of all files, and whole those that have rows of its server."""
    whole = digits(checkpoint_every=10)
    machines = tmp_path / "machines"
    shutil.rmtree(machines)
    again = digits(resume=whole["run_dir"], resume_at=20)
    before, after = losses(whole["run_dir"]), losses(again["run_dir"])
    assert len(after) > 2
    assert {at: before[at] for at in after} == after
    for kind, files in (("init", 2), ("rows", 1)):  # a file has a shard
        found = [machines.glob(f"{name}/*/inputs/{kind}/*/shard-*") for name in "ab"]
        sent = [{each.name for each in here} for here in found]
        assert [len(here) for here in sent] == [files, files], kind
        assert len(set.union(*sent)) == 2, kind


def test_checkpoints_are_pruned_on_all_machines(digits, tmp_path):
    summary = digits(checkpoint_every=5, keep_checkpoints=2, epochs=3)
    run = RunFolder(Path(summary["run_dir"]))
    assert len(Checkpoints(run.checkpoints).complete()) == 2
    for own in (tmp_path / "machines").glob("*/*/checkpoints"):
        assert len([each for each in own.iterdir() if each.is_dir()]) <= 3


def test_an_error_of_a_worker_comes_with_its_log(machines, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import shoal\ncontext = shoal.init()\nprint('step 7')\n"
        "if context.rank == 1: raise ValueError('the loss is nan')\n"
        "context.client.barrier('never')\n"
    )
    spec = ScriptRun(workers=2, servers=2, out=str(tmp_path / "runs"), output="none")
    with pytest.raises(ProcessDied) as found:
        machines(ScriptApplication(script, [], spec))
    [run] = (tmp_path / "runs").iterdir()
    assert "the loss is nan" in str(found.value)
    assert str(run / "logs" / "worker-1.log") in str(found.value)
    assert "step 7" in (run / "logs" / "worker-1.log").read_text()


def test_figures_of_a_script_come_from_all_machines(machines, tmp_path):
    script = tmp_path / "logs.py"
    script.write_text(
        "import shoal\ncontext = shoal.init()\nfor step in range(3):\n"
        "    shoal.log(loss=step + context.rank)\ncontext.client.barrier('end')\n"
    )
    spec = ScriptRun(workers=2, servers=2, out=str(tmp_path / "runs"), output="none")
    summary = machines(ScriptApplication(script, [], spec))
    logged = [
        e for e in read_events(RunFolder(Path(summary["run_dir"])).events) if e["kind"] == "logged"
    ]
    assert sorted((each["rank"], each["figures"]["loss"]) for each in logged) == [
        (rank, step + rank) for rank in range(2) for step in range(3)
    ]
    assert all(0 < each["t"] < 120 for each in logged), "of another beginning than the run's"


def test_embeddings_are_trained_on_text_that_one_machine_has_read(machines, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog ran to the cat\n" * 400)
    spec = WordsSpec(
        texts=(str(text),), dim=8, epochs=1, min_count=1, workers=2, servers=2, seed=1,
        block_words=500, out=str(tmp_path / "runs"), tokens="space",
    )  # fmt: skip
    summary = machines(WordsApplication(spec))
    assert summary["words"] > 0
    assert Path(summary["vectors"]).stat().st_size > 100


@pytest.mark.parametrize("loss", ["stop", "reassign"])
def test_a_click_model_is_trained_and_scored(machines, tmp_path, loss):
    spec = CtrSpec(workers=2, servers=2, out=str(tmp_path / "runs"), on_worker_loss=loss, seed=1)
    summary = machines(CtrApplication(spec))
    assert summary["test"]["auc"] > 0.6
    assert summary["rows"] == 20_000
    for own in (tmp_path / "machines").glob("*/*/inputs"):
        sent = {each.name for each in own.iterdir()}
        assert {"train", "test", *(["rows"] if loss == "reassign" else [])} <= sent


def test_a_machine_that_is_lost_takes_only_its_own_along(tmp_path):
    """Of three, each with a server and a worker, with its folder."""
    with Hosts("abc") as hosts:
        place = lambda name: "abc"[int(name.partition("-")[2] or 0)]  # noqa: E731
        engine = Machines(hosts, tmp_path / "machines", place)

        class Losing(TrainApplication):
            def display(self, console, folder):
                return Lose(partial(engine.lose, "b"), folder)

        job = DIGITS | {"workers": 3, "servers": 3, "replicas": 2, "epochs": 4}
        job |= {"on_worker_loss": "reassign", "out": str(tmp_path / "runs"), "checkpoint_every": 10}
        summary = run_here(Losing(from_mapping(job), []), engine=engine)
    assert sorted(summary["lost"]) == ["server-1", "worker-1"]
    assert summary["accuracy"] > 0.8
    assert [*summary["left_on_hosts"]] == ["b"]
    run = RunFolder(Path(summary["run_dir"]))
    assert json.loads(run.summary.read_text())["left_on_hosts"] == summary["left_on_hosts"]
    assert any(node == "worker-1" for node, _, _ in losses(run.path)), "what came before was lost"


class Lose:
    """A display that calls a function once a step of worker 1 has been collected."""

    def __init__(self, call, folder):
        self._call = call
        self._events = folder.events

    def __enter__(self):
        return self.tick

    def __exit__(self, *_):
        assert self._call is None, "nothing was lost"

    def tick(self):
        lines = self._events.read_bytes().splitlines() if self._call else []
        if any(b'"kind":"step"' in line and b'"worker-1"' in line for line in lines):
            self._call()
            self._call = None
