"""`shoal report`: the page of a run, and its figures as files."""

import json

import pytest
from click.testing import CliRunner

from shoal.cli import main
from shoal.runs.job import JobSpec
from shoal.runs.job_file import dump_job
from shoal.storage.event_log import EventLog
from shoal.storage.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    """The folder of a run of one worker with three steps."""
    folder = RunFolder.create(tmp_path, "run")
    folder.write_job(dump_job(JobSpec()))
    log = EventLog(folder.events, "worker-0", 0.0, iter(range(100)).__next__)
    log.write("begin", rank=0, samples=24, batches=3, weights="")
    for step in (1, 2, 3):
        log.write("step", step=step, epoch=0, loss=3.0 - step / 2, samples=8, idle_s=0.25 * step)
    log.close()
    return folder


def report(run, *words):
    done = CliRunner().invoke(main, ["report", str(run.path), *map(str, words)])
    return done.exit_code, done.output


def test_figures_are_files_too(run, tmp_path):
    folder = tmp_path / "new" / "figures"
    code, shown = report(run, "--csv", folder, "--svg", folder, "--json")
    assert code == 0, shown
    found = json.loads(shown)["figures"]
    pictures = [*(f"loss-{axis}.svg" for axis in ("step", "seconds")), "idle.svg"]  # no bytes
    assert found == [str(folder / name) for name in (*pictures, "loss.csv", "idle.csv")]
    assert {each.name for each in folder.iterdir()} == {*pictures, "loss.csv", "idle.csv"}
    lines = (folder / "loss.csv").read_text().splitlines()
    assert lines[:3] == ["cell,against,x,loss", "sync,step,1.0,2.5", "sync,step,2.0,2.0"]


def test_without_the_options_the_page_is_all(run, tmp_path):
    page = run.path / "report.html"
    assert report(run) == (0, f"{page}\n")
    files = [tmp_path / "only" / name for name in ("loss.csv", "idle.csv")]
    shown = report(run, "--csv", tmp_path / "only")
    assert shown == (0, "".join(f"{each}\n" for each in (page, *files)))


@pytest.mark.parametrize("option", ["--csv", "--svg"])
def test_figures_that_cannot_be_written_are_told_before_the_page_is_written(run, option):
    code, shown = report(run, option, "/proc/nowhere")
    assert code == 2
    assert "no figures can be written to /proc/nowhere" in shown
    assert not (run.path / "report.html").exists()
