"""Comparisons on real processes, and the page as a browser shows it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli import main
from tests.real.texts import text
from tests.real.waiting import until

pytestmark = pytest.mark.real
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
WORDS = "compare digits --epochs 1 --workers 2 --json"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("compared"))
    words = f"{WORDS} --strategy sync,allreduce,ssp --staleness 1 --seeds 2 --out {out}"
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.xdist_group("comparisons")
def test_cells_run_on_real_processes(compared):
    table = {row["cell"]: row for row in compared["table"]}
    assert table.keys() == {"sync", "allreduce", "ssp"}
    found = shoal.reports.load_comparison(compared["comparison"])
    assert found.unlike_weights() == []
    assert table["sync"]["accuracy"] == pytest.approx(table["allreduce"]["accuracy"], abs=0.01)
    for row in table.values():
        assert row["runs"] == 2
        assert 0 < row["idle"] < 1
        assert row["bytes"] > 0


def ended_runs(folder: Path) -> list[Path]:
    return list(folder.glob("*/cells/*/*/summary.json"))


def browse(page: Path, size: str, more: tuple[str, ...] = ()) -> tuple[str, str]:
    """The page's elements after its scripts have run, and what the browser has logged."""
    done = subprocess.run(
        [
            *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"),
            *("--enable-logging=stderr", "--virtual-time-budget=5000", f"--window-size={size}"),
            *("--proxy-server=127.0.0.1:9", *more, "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.xdist_group("comparisons")
@pytest.mark.parametrize("size", ["1280,1600", "500,900"])
def test_the_page_opens_without_a_network_and_without_an_error(compared, size):
    page = Path(compared["report"])
    elements, log = browse(page, size)
    assert log == ""
    drawn = re.findall(r'<div class="chart js-plotly-plot"', elements)
    assert len(drawn) == len(re.findall(r'<div class="chart', elements)) >= 5
    assert "NaN" not in re.sub(r"<script.*?</script>", "", elements, flags=re.DOTALL)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.xdist_group("comparisons")
def test_an_error_of_the_page_would_be_seen(compared, tmp_path):
    """The guard of the test above: a script that fails, and one from elsewhere."""
    source = Path(compared["report"]).read_text()
    for planted in ("<script>absent()</script>", '<script src="http://127.0.0.1:9/a.js"></script>'):
        page = tmp_path / "planted.html"
        page.write_text(source.replace("</main>", f"</main>{planted}"))
        assert browse(page, "800,600")[1]


def test_an_interrupted_comparison_says_how_to_go_on(tmp_path):
    """Ctrl-C while its second run trains: the first one is kept."""
    words = f"{WORDS} --strategy sync,asgd --seeds 3 --out {tmp_path}".split()
    running = subprocess.Popen(
        [sys.executable, "-m", "shoal", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    until(lambda: ended_runs(tmp_path) or running.poll() is not None, "no run has ended", 60)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    (folder,) = tmp_path.iterdir()
    assert text("comparisons.interrupted") in told
    assert text("comparisons.go_on", folder=folder) in " ".join(told.split())
    result = CliRunner().invoke(main, ["compare", "--resume", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    table = json.loads(result.stdout.splitlines()[-1])["table"]
    assert [row["runs"] for row in table] == [3, 3]


def test_an_interrupted_simulated_comparison_ends_its_processes(tmp_path):
    words = [*WORDS.split(), "--strategy", "sync,asgd", "--seeds", "20", "--simulated"]
    words += ["--epochs", "3", "--out", str(tmp_path)]
    running = subprocess.Popen(
        [sys.executable, "-m", "shoal", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: ended_runs(tmp_path) or running.poll() is not None, "no run has ended", 60)
    os.killpg(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in told
    assert text("comparisons.go_on", folder="") in " ".join(told.split())
    with pytest.raises(ProcessLookupError):  # nothing of it is left
        os.killpg(running.pid, 0)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and tc")
def test_links_have_the_bandwidth_that_was_asked_for(tmp_path):
    """Each of 6 steps moves the model's gradients and parameters through 4 Mbit/s."""
    words = f"{WORDS} --strategy sync --bandwidth 4 --max-steps 6 --out {tmp_path}"
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout.splitlines()[-1])["table"]
    least = row["bytes"] / 2 * 8 / 4e6  # one direction of the server's link
    assert 0.7 * least < row["seconds"] < 3 * least


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        ("ctr --strategy asgd,sync --seeds 2", ("auc", "log_loss", "rows_per_s", "bytes")),
        ("word2vec --dim 8,16 --epochs 1", ("words_per_s", "seconds", "bytes")),
    ],
    ids=["ctr", "word2vec"],
)
def test_runs_of_an_application_are_compared(tmp_path, words, figures):
    result = CliRunner().invoke(main, ["compare", *words.split(), "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert [row["runs"] for row in found["table"]] == [2 if "seeds" in words else 1] * 2
    assert all(row[name] > 0 for row in found["table"] for name in figures)
    page = Path(found["report"]).read_text()
    assert all(row["cell"] in page for row in found["table"])
    again = CliRunner().invoke(main, ["compare", "--resume", found["comparison"], "--json"])
    assert json.loads(again.stdout.splitlines()[-1])["table"] == found["table"]


def test_a_cell_of_an_application_that_is_wrong_makes_no_folder(tmp_path):
    for words, told in (
        ("ctr --strategy asgd,easgd", text("comparisons.cell_wrong_strategy")),
        ("ctr nothere.csv", text("comparisons.no_file")),
        ("ctr --lr 0.1,no", text("comparisons.cell_wrong_lr")),
        ("word2vec --dim 0", text("comparisons.cell_wrong_size")),
    ):
        result = CliRunner().invoke(main, ["compare", *words.split(), "--out", str(tmp_path)])
        assert result.exit_code != 0
        assert told in " ".join(result.stderr.split())
    assert not [*tmp_path.iterdir()]
