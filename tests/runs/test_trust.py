"""What runs and job files of other users have imported, and that it is not imported unasked."""

import os

import pytest
from click.testing import CliRunner

import shoal as shoal_package
from shoal.cli import main
from shoal.errors import DataCorrupt, DataMissing, NotTrusted
from shoal.runs.job import JobSpec
from shoal.runs.job_file import dump_job
from shoal.runs.resume import resumed_at
from shoal.runs.trust import check_run, code_of, trusting
from shoal.storage.run_folder import RunFolder


@pytest.fixture
def code(tmp_path):
    """A module that leaves a file where it is imported."""
    (tmp_path / "planted.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('imported').touch()\ndef make(): ...\n"
    )
    return f"{tmp_path / 'planted.py'}:make"


@pytest.fixture
def run(tmp_path, code):
    """The folder of a run whose model is that module's, with a file of a checkpoint."""
    folder = RunFolder.create(tmp_path, "theirs")
    folder.write_job(dump_job(JobSpec(model=code)))
    folder.checkpoint(2).mkdir(parents=True)
    (folder.checkpoint(2) / "shard-w-0.safetensors").touch()
    return folder


@pytest.fixture
def another(monkeypatch):
    """From now on this process is another user, to whom what it has written is not his own."""
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4321)


def shoal(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    return done.exit_code, " ".join(done.output.split())


def imported(tmp_path):
    return (tmp_path / "imported").exists()


def test_resuming_the_run_of_another_user_imports_nothing_and_says_what_it_would(
    tmp_path, run, code, another
):
    another()
    status, said = shoal("train", "--resume", run.path, "--out", tmp_path / "out")
    assert not imported(tmp_path)
    assert status == 2
    assert f"NotTrusted: {run.path} belongs to" in said
    assert f"would import {code} (model)" in said
    assert "--trust" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
@pytest.mark.parametrize("part", [".", "job.toml", "checkpoints", "checkpoints/0000000002"])
def test_one_part_of_another_user_is_enough(tmp_path, run, part):
    check_run(run.path)
    os.chown(run.path / part, 54321, 54321)
    status, said = shoal("train", "--resume", run.path, "--out", tmp_path / "out")
    assert not imported(tmp_path)
    assert (status, "belongs to user 54321" in said) == (2, True)


def test_a_run_that_others_could_have_changed_is_not_continued(tmp_path, run):
    run.job.chmod(0o666)
    check_run(run.path)  # nobody else comes as far as that file
    run.path.chmod(0o755)
    with pytest.raises(NotTrusted, match=r"job.toml can be written to by all users"):
        check_run(run.path)
    run.job.chmod(0o644)
    check_run(run.path)
    run.path.chmod(0o777)
    with pytest.raises(NotTrusted, match=r"theirs-.* can be written to by all users"):
        check_run(run.path)
    with trusting():
        check_run(run.path)
    with pytest.raises(NotTrusted):
        check_run(run.path)


def test_a_strategy_that_a_run_names_is_code_too(tmp_path, run, code, another):
    run.write_job(dump_job(JobSpec(strategy=code)))
    _, said = shoal("train", "--resume", run.path, "--strategy", "sync", "--out", tmp_path / "out")
    assert "importing" not in said
    another()
    status, said = shoal("train", "--resume", run.path, "--out", tmp_path / "out")
    assert (status, f"would import {code} (strategy)" in said) == (2, True), said
    with pytest.raises(NotTrusted, match="belongs to"):
        shoal_package.train(resume=str(run.path))
    assert not imported(tmp_path)


def test_what_a_run_of_ones_own_has_imported_is_said(tmp_path, run, code):
    _, said = shoal("train", "--resume", run.path, "--out", tmp_path / "out")
    assert f"importing {code} (model), as {run.job} says" in said
    _, said = shoal("train", "--resume", run.path, "--model", "mlp", "--out", tmp_path / "out")
    assert "importing" not in said


def test_a_trusted_run_is_continued(tmp_path, run, code, another):
    another()
    status, said = shoal("train", "--resume", run.path, "--trust", "--out", tmp_path / "out")
    assert "NotTrusted" not in said
    assert f"importing {code} (model)" in said
    assert status == 2  # its checkpoint is an empty file
    assert "checkpoint" in said


@pytest.mark.parametrize(
    "words",
    [
        ["train", "digits", "--model", "mlp", "--resume", "RUN"],
        ["train", "ctr", "--resume", "RUN"],
        ["run", "--resume", "RUN", __file__],
        ["worker", "--scheduler", "unix:///nowhere", "--resume", "RUN", __file__],
        ["server", "--scheduler", "unix:///nowhere", "--resume", "RUN"],
        ["chaos", "digits", "--model", "mlp", "--resume", "RUN"],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_no_command_continues_the_run_of_another_user(tmp_path, run, another, words):
    if words[1] == "ctr":
        run.write_job('application = "ctr"\n')
    another()
    status, said = shoal(*(run.path if word == "RUN" else word for word in words))
    assert (status, "NotTrusted" in said) == (2, True), said
    assert not imported(tmp_path)


def test_a_call_and_a_job_file_that_name_the_run_of_another_user_do_not_continue_it(
    tmp_path, run, another
):
    another()
    with pytest.raises(NotTrusted, match="belongs to"):
        shoal_package.train(resume=str(run.path))
    with pytest.raises(DataCorrupt, match="checkpoint"):
        shoal_package.train(resume=str(run.path), trust=True)
    (tmp_path / "job.toml").write_text(f'resume = "{run.path}"\n')
    status, said = shoal("train", tmp_path / "job.toml")
    assert (status, "NotTrusted" in said) == (2, True), said


def test_a_job_cannot_trust_itself(run):
    run.write_job("trust = true\n")
    status, said = shoal("train", "--resume", run.path)
    assert (status, "unknown job field 'trust'" in said) == (2, True)


def test_a_job_file_of_another_user_may_not_name_code(tmp_path, code, another):
    job = tmp_path / "job.toml"
    job.write_text(f'data = "{code}"\nepochs = 0\n')
    another()
    status, said = shoal("train", job)
    assert f"NotTrusted: {job} belongs to" in said
    assert f"would import {code} (data)" in said
    status, said = shoal("train", job, "--trust")
    assert (status, "epochs: expected" in said) == (2, True)
    job.write_text("epochs = 0\n")  # which names none
    status, said = shoal("train", job)
    assert (status, "epochs: expected" in said) == (2, True)
    assert not imported(tmp_path)


@pytest.mark.parametrize("form", ['"{}:4"', '{{"*" = "topk:0.1+{}"}}'])
def test_a_codec_that_a_file_of_another_user_names_is_code_too(tmp_path, code, another, form):
    job, comparison = tmp_path / "job.toml", tmp_path / "comparison.toml"
    job.write_text(f'data = "digits"\ncodec = {form.format(code)}\n')
    comparison.write_text(
        f'[job]\ndata = "digits"\n[grid]\ncodec = ["none", {form.format(code)}]\n'
    )
    another()
    for words in (["train", job], ["compare", comparison]):
        status, said = shoal(*words)
        assert status == 2
        assert f"NotTrusted: {words[1]} belongs to" in said
        assert f"would import {code.rpartition(':')[0]} (codec)" in said
    assert not imported(tmp_path)


@pytest.mark.parametrize("codec", ["5", "[1]", "true"])
def test_a_codec_of_the_wrong_type_is_refused_by_name(tmp_path, codec):
    (tmp_path / "job.toml").write_text(f'data = "digits"\ncodec = {codec}\n')
    status, said = shoal("train", tmp_path / "job.toml")
    assert (status, "codec" in said, "Traceback" in said) == (2, True, False)


def test_a_job_file_that_its_caller_names_is_its_choice(tmp_path, code):
    (tmp_path / "job.toml").write_text(f'model = "{code}"\n')
    shoal("train", tmp_path / "job.toml", "--data-dir", tmp_path, "--init", tmp_path / "none")
    assert not imported(tmp_path)  # refused for its initial weights
    status, said = shoal("train", tmp_path / "job.toml", "--assignment", "strange")
    assert status == 2, said
    assert imported(tmp_path)


def test_reading_a_run_imports_nothing(tmp_path, run, another):
    another()
    for words in (["export", run.path], ["why", run.path], ["predict", run.path, __file__]):
        status, _ = shoal(*words)
        assert status == 2
    assert not imported(tmp_path)


def test_a_new_run_needs_no_trust():
    assert resumed_at("") == 0
    with pytest.raises(DataMissing):
        resumed_at("no-such-run")


def test_only_names_with_a_function_are_code():
    assert code_of({"data": "csv:a.csv", "model": "mlp"}) == {}
    assert code_of({"data": "x.py:rows", "workers": 1}) == {"data": "x.py:rows"}
