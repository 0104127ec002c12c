"""What can be known to be wrong is refused before any process starts, and leaves no folder."""

import gzip

import pytest
from click.testing import CliRunner

from shoal.apps.train.checks import check_inputs
from shoal.cli import main
from shoal.engines import local
from shoal.errors import NotImportable
from shoal.runs.job import JobSpec
from tests.real.texts import pattern, text

pytestmark = pytest.mark.real  # it would start processes, were it not refused


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Runs a command that has to fail; what it says."""

    def started(*words, **more):
        raise AssertionError("a process was started")

    monkeypatch.setattr(local.subprocess, "Popen", started)
    monkeypatch.chdir(tmp_path)

    def ran(words):
        result = CliRunner().invoke(main, words.split())
        assert result.exit_code == 2, result.output
        assert not list(tmp_path.glob("shoal-runs/*")), "a run's folder was made"
        return result.output

    return ran


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train digits --optimizer adamm", text("refused.unknown_method")),
        ("train digits --optimizer-option beta1=2", text("refused.option_out_of_range")),
        ("train digits --optimizer-option momentum=1", text("refused.option_unknown")),
        ("train csv:absent.csv", text("refused.no_csv")),
        ("train csv:words.csv", "words.csv"),
        ("train digits --replicas 3", text("refused.replicas", replicas=3, servers=1)),
        ("train digits --servers 0", "--servers 0"),
        ("train digits --model resnet", text("refused.unknown_model")),
        ("train digits --model shoal.nothing:f", text("refused.no_module")),
        ("train digits --init absent.safetensors", text("refused.initial_weights_missing")),
        ("train digits --init words.csv", text("refused.initial_weights_do_not_fit")),
        ("train dogits", text("refused.unknown_dataset")),
        ("train digits --strategy sink", text("refused.unknown_strategy")),
        ("train digits --assignment odd", "odd"),
        ("train digits --strategy p2p --checkpoint-every-s 5", text("refused.timed_checkpoints")),
        ("train digits --resume .", text("refused.no_run")),
        ("train digits --workers 0", text("refused.no_workers")),
        ("run --resume . script.py", text("refused.no_checkpoint")),
        ("run --replicas 2 script.py", text("refused.replicas", replicas=2, servers=1)),
        ("run --import absent.py script.py", text("refused.no_import")),
        ("train ctr absent.libsvm", text("refused.ctr_rows_unreadable")),
        ("train ctr words.csv", "words.csv"),
        ("train ctr words.csv --format libsvm", text("refused.libsvm_line_wrong")),
        ("train ctr cut.gz", "cut.gz"),
        ("train ctr --test absent.libsvm", text("refused.ctr_rows_unreadable")),
        ("train ctr --init .", text("refused.initial_rows_missing")),
        ("train ctr --resume .", text("refused.no_run")),
        ("train word2vec absent.txt", text("refused.no_text")),
        ("train word2vec cut.gz", text("refused.gzip_cut")),
        ("train word2vec --analogies words.csv", text("refused.questions_wrong")),
        ("train word2vec --similarities words.csv", text("refused.similarities_wrong")),
        ("predict . words.csv", text("refused.no_run")),
        ("chaos digits --replicas 1", text("refused.chaos_without_replicas")),
        ("chaos digits --replicas 9", text("refused.replicas", replicas=9, servers=3)),
    ],
    ids=lambda each: each if " " in each else "",
)  # fmt: skip
def test_what_is_wrong_is_named(words, told, refused, tmp_path):
    (tmp_path / "words.csv").write_text("a,b\nc,d\ne,f\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"1 3:4\n" * 100)[:-20])
    (tmp_path / "script.py").write_text("")
    assert told in refused(words)


def test_a_users_function_is_imported_but_only_workers_call_it(tmp_path):
    (tmp_path / "called.py").write_text("def make(): raise AssertionError('called')\n")
    check_inputs(JobSpec(model=f"{tmp_path}/called.py:make"), [])
    check_inputs(JobSpec(data=f"{tmp_path}/called.py:make"), [])
    with pytest.raises(NotImportable, match=pattern("refused.no_member")):
        check_inputs(JobSpec(model=f"{tmp_path}/called.py:absent"), [])
