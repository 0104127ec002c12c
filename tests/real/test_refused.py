"""What can be known to be wrong is refused before any process starts, and leaves no folder."""

import gzip

import pytest
from click.testing import CliRunner

from shoal.apps.train.checks import check_inputs
from shoal.cli import main
from shoal.engines import local
from shoal.errors import NotImportable
from shoal.runs.job import JobSpec

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
        ("train digits --optimizer adamm", "optimizer: unknown access method 'adamm'"),
        ("train digits --optimizer-option beta1=2", "beta1=2 is out of range"),
        ("train digits --optimizer-option momentum=1", "unknown option of adam 'momentum'"),
        ("train csv:absent.csv", "no such CSV file"),
        ("train csv:words.csv", "words.csv"),
        ("train digits --replicas 3", "--replicas 3 needs at least 3 servers (got 1)"),
        ("train digits --servers 0", "--servers 0"),
        ("train digits --model resnet", "unknown model 'resnet'"),
        ("train digits --model shoal.nothing:f", "cannot import 'shoal.nothing'"),
        ("train digits --init absent.safetensors", "no initial weights at absent.safetensors"),
        ("train digits --init words.csv", "words.csv does not fit the model"),
        ("train dogits", "unknown dataset 'dogits'"),
        ("train digits --strategy sink", "unknown strategy 'sink'"),
        ("train digits --assignment odd", "odd"),
        ("train digits --strategy p2p --checkpoint-every-s 5", "use --checkpoint-every"),
        ("train digits --resume .", "is not the folder of a run"),
        ("train digits --workers 0", "'--workers': 0 is not in the range 1<=x<=1024"),
        ("run --resume . script.py", "no complete checkpoint"),
        ("run --replicas 2 script.py", "--replicas 2 needs at least 2 servers (got 1)"),
        ("run --import absent.py script.py", "no file"),
        ("train ctr absent.libsvm", "absent.libsvm: cannot be read"),
        ("train ctr words.csv", "words.csv"),
        ("train ctr words.csv --format libsvm", "words.csv: line 1"),
        ("train ctr cut.gz", "cut.gz"),
        ("train ctr --test absent.libsvm", "absent.libsvm: cannot be read"),
        ("train ctr --init .", "has no shards"),
        ("train ctr --resume .", "is not the folder of a run"),
        ("train word2vec absent.txt", "no text at absent.txt"),
        ("train word2vec cut.gz", "cut.gz: at byte 12: the file ends inside its gzip data"),
        ("train word2vec --analogies words.csv", "words.csv, line 1: expected four words"),
        ("train word2vec --similarities words.csv", "words.csv, line 2"),
        ("predict . words.csv", "is not the folder of a run"),
        ("chaos digits --replicas 1", "add --replicas 2"),
        ("chaos digits --replicas 9", "--replicas 9 needs at least 9 servers (got 3)"),
    ],
    ids=lambda text: text if " " in text else "",
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
    with pytest.raises(NotImportable, match="no 'absent'"):
        check_inputs(JobSpec(model=f"{tmp_path}/called.py:absent"), [])
