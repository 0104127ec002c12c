"""Tasks on hosts with folders of their own: their paths, clocks and inputs."""

import pytest

from shoal.engines.base import Input, Task
from shoal.engines.host_files import LocalFiles
from shoal.engines.placing import all_of, collected, placed, shares
from shoal.errors import DataMissing, ProcessDied
from shoal.protocol.supervision.supervisor import Exit
from shoal.storage.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    return RunFolder.begin_in(tmp_path / "here" / "run")


@pytest.fixture
def apart(tmp_path):
    """A host that sees nothing of this one."""
    folder = RunFolder.begin_in(tmp_path / "there" / "run")
    files = LocalFiles(folder.path, "b", root=tmp_path / "there")
    files.ahead_s = 2.5
    return files


@pytest.fixture
def here(run):
    return LocalFiles(run.path, "a")


def test_only_a_host_that_sees_the_folder_shares_it(run, here, apart, tmp_path):
    assert shares(here, run)
    assert not shares(apart, run)
    (tmp_path / "other").symlink_to(run.path.parent)
    apart.path = tmp_path / "other" / "run"  # as another host mounts it
    assert shares(apart, run)


def test_a_task_has_the_folder_and_the_clock_of_its_host(run, apart):
    args = {"folder": str(run.path), "started_at": 100.0, "threads": 2}
    task = Task("worker-0", "m:f", args, env={"SHOAL_RUN_DIR": str(run.path), "OTHER": "1"})
    there = placed(task, apart, run)
    assert there.args == {"folder": str(apart.path), "started_at": 102.5, "threads": 2}
    assert there.env == {"SHOAL_RUN_DIR": str(apart.path), "OTHER": "1"}
    assert task.args["started_at"] == 100.0, "a second start would be later still"


def test_a_host_that_sees_the_inputs_gets_none(run, here, tmp_path):
    path = tmp_path / "corpus.npz"
    path.write_bytes(b"words")
    task = Task("w", "m:f", {"corpus": str(path)}, inputs=(all_of(("corpus",), path),))
    assert placed(task, here, run).args == {"corpus": str(path)}
    assert not (run.path / "inputs").exists()


def test_files_and_folders_are_sent_to_a_host_that_does_not_see_them(run, apart, tmp_path):
    rows = tmp_path / "here" / "rows"
    (rows / "deep").mkdir(parents=True)
    (rows / "one").write_bytes(b"1" * 10)
    (rows / "deep" / "two").write_bytes(b"")
    corpus = tmp_path / "here" / "corpus.npz"
    corpus.write_bytes(b"x" * ((4 << 20) + 1))
    args = {"inputs": {"rows": str(rows), "corpus": str(corpus), "n": 1}}
    inputs = (all_of(("inputs", "rows"), rows), all_of(("inputs", "corpus"), corpus))
    there = placed(Task("w", "m:f", args, inputs=inputs), apart, run).args["inputs"]
    own = apart.path / "inputs"
    assert there == {
        "rows": str(own / "rows/rows"),
        "corpus": str(own / "corpus/corpus.npz"),
        "n": 1,
    }
    assert (own / "rows/rows/one").read_bytes() == b"1" * 10
    assert (own / "rows/rows/deep/two").read_bytes() == b""
    assert (own / "corpus/corpus.npz").read_bytes() == corpus.read_bytes()
    assert args["inputs"]["rows"] == str(rows), "the task itself was changed"


def test_a_second_start_sends_nothing_again(run, apart, tmp_path):
    path = tmp_path / "corpus.npz"
    path.write_bytes(b"words")
    task = Task("w", "m:f", {"corpus": str(path)}, inputs=(all_of(("corpus",), path),))
    first = placed(task, apart, run)
    apart.put = lambda *_: pytest.fail("it was sent again")
    assert placed(task, apart, run) == first


def test_inputs_that_cannot_be_sent_are_an_error_before_the_start(run, apart, tmp_path):
    task = Task("w", "m:f", {"a": "/x"}, inputs=(Input(("a",), str(tmp_path), ("gone",)),))
    with pytest.raises(DataMissing, match="cannot be sent to b"):
        placed(task, apart, run)


def test_an_error_names_the_runs_own_folder(run, apart):
    error = ProcessDied(f"its log: {RunFolder(apart.path).log('w')}", ["story"])
    report = collected(Exit("w", 1, error=error), apart, run)
    assert report.error.message == f"its log: {run.log('w')}"
    assert [*report.error.trace] == ["story"]
    assert collected(Exit("w", 0), apart, run) == Exit("w", 0)
