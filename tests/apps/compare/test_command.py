"""Comparisons from the command line and from Python: their runs, how they go on, their report."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.apps.compare import runs
from shoal.cli import main
from shoal.errors import InvalidValue, ShoalError
from shoal.storage.comparison_folder import ComparisonFolder
from shoal.storage.run_folder import RunFolder

SCRIPTS = Path(__file__).parent / "scripts"
SIMULATED = "--simulated --batch-s 0.01 --epochs 1 --workers 2 --jobs 1"


def invoke(words, tmp_path, code=0):
    out = () if "--resume" in words else ("--out", str(tmp_path))
    result = CliRunner().invoke(main, [*words.split(), *out])
    assert result.exit_code == code, result.output
    return result.stdout


def report_of(output):
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two strategies with two seeds each, and the report of the command."""
    folder = tmp_path_factory.mktemp("compared")
    words = f"compare digits --strategy sync,easgd --set tau=2 --seeds 2 {SIMULATED} --json"
    return report_of(invoke(words, folder))


def events_of(run):
    lines = (Path(run) / "events.jsonl").read_text().splitlines()[1:]
    return [json.loads(line) for line in lines]


def test_every_number_of_the_table_is_in_the_events(compared):
    """Recomputed from the lines of the event logs, without the code of reports."""
    assert [row["cell"] for row in compared["table"]] == ["sync", "easgd"]
    for row in compared["table"]:
        found = {name: [] for name in ("accuracy", "loss", "seconds", "bytes", "idle", "time_to")}
        for run in row["run_dirs"]:
            events = events_of(run)
            evals = [e for e in events if e["kind"] == "eval" and e["node"] == "worker-0"]
            begun = {e["node"]: e["t"] for e in events if e["kind"] == "begin"}
            last = {e["node"]: e for e in events if e["kind"] == "end"}
            found["accuracy"].append(evals[-1]["accuracy"])
            found["loss"].append(evals[-1]["loss"])
            seconds = {node: event["t"] - begun[node] for node, event in last.items()}
            assert seconds == {n: pytest.approx(e["seconds"], abs=1e-5) for n, e in last.items()}
            found["seconds"].append(max(seconds.values()))
            sent = [e["bytes_sent"] + e["bytes_received"] for e in last.values()]
            found["bytes"].append(sum(sent))
            idle = [event["idle_s"] / seconds[node] for node, event in last.items()]
            found["idle"].append(sum(idle) / 2)
            reached = [e["t"] for e in evals if e["accuracy"] >= row["threshold"]]
            found["time_to"].append(reached[0] - begun["worker-0"])
        for name, values in found.items():
            assert row[name] == pytest.approx(sum(values) / 2, rel=1e-3), name
            if name != "time_to":
                half = abs(values[0] - values[1]) / 2**0.5
                assert row[f"{name}_sd"] == pytest.approx(half, rel=1e-3, abs=1e-6)


def test_all_runs_of_a_seed_begin_with_the_same_weights(compared):
    found = shoal.reports.load_comparison(compared["comparison"])
    sync, easgd = found.cells
    assert found.unlike_weights() == []
    for seed in (0, 1):
        assert sync.curves[seed].weights == easgd.curves[seed].weights != ""
    assert sync.curves[0].weights != sync.curves[1].weights


def test_the_page_has_the_learning_curves_and_the_commands(compared):
    text = Path(compared["report"]).read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])
    named = {figure["name"]: figure for figure in figures}
    assert named.keys() == {"accuracy", "loss", "test_loss", "idle"}  # nobody is behind another
    line = named["accuracy"]["traces"][1]
    found = shoal.reports.load_comparison(compared["comparison"]).cells[1]
    curves = [found.curves[seed].accuracy for seed in (0, 1)]
    pairs = list(zip(*curves, strict=True))
    assert line["name"] == "easgd"
    assert line["meta"]["y"]["seconds"] == pytest.approx([(a.value + b.value) / 2 for a, b in pairs])  # noqa: E501  # fmt: skip
    assert line["meta"]["x"]["seconds"] == pytest.approx([(a.seconds + b.seconds) / 2 for a, b in pairs])  # noqa: E501  # fmt: skip
    for command in ("shoal compare ", "shoal report "):
        assert f"{command}{compared['comparison']}" in text
    assert "src=" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_only_what_has_not_ended_is_run_again(tmp_path):
    words = f"compare digits --strategy sync,asgd {SIMULATED} --json"
    first = report_of(invoke(words, tmp_path))
    kept, again = (Path(row["run_dirs"][0]) for row in first["table"])
    (again / "summary.json").unlink()
    page = CliRunner().invoke(main, ["report", first["comparison"], "--json"])
    assert [row["cell"] for row in report_of(page.stdout)["table"]] == ["sync"]
    assert "1 run has not ended: shoal compare --resume" in Path(first["report"]).read_text()
    second = report_of(invoke(f"compare --resume {first['comparison']} --json", tmp_path))
    places = [Path(row["run_dirs"][0]) for row in second["table"]]
    assert places[0] == kept
    assert places[1] != again
    assert second["table"][1]["accuracy"] == first["table"][1]["accuracy"]


def test_a_run_that_fails_leaves_the_others(tmp_path, monkeypatch):
    simulate_job = runs.simulate_job

    def failing(job, *more):
        if job.strategy == "asgd":
            raise ShoalError("it was planted")
        return simulate_job(job, *more)

    monkeypatch.setattr(runs, "simulate_job", failing)
    words = f"compare digits --strategy asgd,sync {SIMULATED}"
    found = report_of(invoke(f"{words} --json", tmp_path, code=1))
    assert found["failed"] == {"asgd, seed 0": "it was planted"}
    assert [row["cell"] for row in found["table"]] == ["sync"]
    shown = invoke(words, tmp_path, code=1)
    assert "failed asgd, seed 0: it was planted" in shown
    assert "shoal compare --resume" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("digits --strategy sync --staleness 1,2", "none of sync has 'staleness'"),
        ("digits --strategy sync,easgd --set tau=0,1", "tau"),
        ("digits --workers 0,2", "workers"),
        ("digits --strategy sync --redundancy 2", "redundancy"),
        ("digits --batch-size 1,two", "batch_size"),
        ("digits --simulated --pace 1,2,3 --workers 2", "is of more than 2 workers"),
        ("absent.toml", "no comparison file at absent.toml"),
        ("dogits", "unknown dataset 'dogits'"),
        ("--resume absent", "absent is not the folder of a comparison"),
        ("digits --resume absent --seeds 2", "leave out --comparison, --seeds"),
        ("digits --strategy 1", "expected a name, got 1"),
        ("digits --optimizer adam,adamm", "unknown access method 'adamm'"),
        ("digits --data mnist", "give digits or --data mnist, not both"),
        ("--data mine.py", "say which one returns the data, mine.py:FUNCTION"),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(words, told, tmp_path):
    out = () if "--resume" in words else ("--out", str(tmp_path))
    result = CliRunner().invoke(main, ["compare", *words.split(), *out])
    assert result.exit_code in (1, 2)
    assert told in result.output
    assert not list(tmp_path.iterdir())


def test_all_cells_are_in_the_report_in_whatever_order_the_axes_are_given(tmp_path):
    words = f"compare digits --strategy easgd --set tau=2,4 --lr 0.1,0.2 {SIMULATED} --json"
    found = report_of(invoke(words, tmp_path))
    assert len(found["table"]) == 4
    again = report_of(invoke(f"compare --resume {found['comparison']} --json", tmp_path))
    assert again["table"] == found["table"]


def test_an_error_of_a_users_model_leaves_the_others(tmp_path, monkeypatch):
    shutil.copy(SCRIPTS / "models.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    both = "models.py:Wrong,models.py:small"
    words = f"compare digits --model {both} {SIMULATED} --json"
    found = report_of(invoke(words, tmp_path, code=1))
    assert found["failed"] == {"sync model=models.py:Wrong, seed 0": "ValueError: it was planted"}
    assert [row["cell"] for row in found["table"]] == ["sync model=models.py:small"]


def test_a_model_that_cannot_be_measured_is_refused(tmp_path, monkeypatch):
    shutil.copy(SCRIPTS / "models.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["compare", "digits", "--model", "models.py:Wrong", "--simulated"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "no gradient of a batch: ValueError: it was planted" in result.output
    assert not (tmp_path / "shoal-runs").exists()


def test_a_killed_process_leaves_a_report(tmp_path, monkeypatch):
    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(runs, "simulate_job", killed)
    words = f"compare digits --strategy asgd,sync {SIMULATED} --json"
    found = report_of(invoke(words, tmp_path, code=1))
    assert len(found["failed"]) == 2
    assert all("was killed" in error for error in found["failed"].values())
    assert Path(found["report"]).exists()


def test_runs_that_diverge_are_in_the_report(tmp_path):
    """A rate of 1e38: the loss is no number. What is printed is JSON as others read it."""
    words = f"compare digits --strategy allreduce --optimizer sgd --lr 1e38,0.1 --seeds 2 {SIMULATED} --json"  # noqa: E501  # fmt: skip
    text = invoke(words, tmp_path).splitlines()[-1]

    def refused(name):
        raise AssertionError(f"{name} is not JSON")

    wild, tame = json.loads(text, parse_constant=refused)["table"]
    assert (wild["loss"], wild["loss_sd"]) == (None, None)
    assert tame["loss"] > 0
    page = Path(json.loads(text)["report"]).read_text()
    assert ">nan<" not in page.lower()


def test_a_damaged_run_is_run_again(compared, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(compared["comparison"], folder)
    damaged = next(folder.glob("cells/sync-seed1/*/summary.json"))
    damaged.write_text("{")
    assert repr(shoal.reports.load_comparison(folder)).endswith("3 of 4 runs)")
    found = report_of(invoke(f"compare --resume {folder} --json", tmp_path))
    assert [row["runs"] for row in found["table"]] == [2, 2]


def test_figures_have_elements_of_their_own(tmp_path):
    words = "compare digits --strategy easgd,bmuf --set bmuf.tau=1,2,3 --set easgd.tau=4,5,6"
    found = report_of(invoke(f"{words} {SIMULATED} --json", tmp_path))
    ids = re.findall(r'class="chart" id="([^"]*)"', Path(found["report"]).read_text())
    assert len(ids) == len({*ids}) >= 9


def test_a_file_has_a_grid(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("""
        seeds = 2
        simulated = true
        [job]
        data = "digits"
        epochs = 1
        max_steps = 3
        [grid]
        strategy = ["ssp", "sync"]
        staleness = [0, 1, 2]
        [strategies.sync]
        lr = 0.01
        [simulation]
        batch_s = 0.01
        turn = 1
        pace = "1,4"
    """)
    found = report_of(invoke(f"compare {path} --seeds 1 --workers 2 --json", tmp_path))
    names = [row["cell"] for row in found["table"]]
    assert names == ["ssp staleness=0", "ssp staleness=1", "ssp staleness=2", "sync"]
    again = report_of(invoke(f"compare {found['comparison']}/comparison.toml --json", tmp_path))
    same = ("cell", "accuracy", "seconds", "bytes", "idle", "staleness")
    for one, other in zip(found["table"], again["table"], strict=True):
        assert [one[name] for name in same] == [other[name] for name in same]
    text = Path(found["report"]).read_text()
    assert "Idle time against staleness" in text


def test_it_is_reached_from_python(tmp_path):
    found = shoal.compare(
        data="digits",
        strategy=["sync", "allreduce"],
        workers=2,
        epochs=1,
        simulated=True,
        batch_s=0.01,
        out=tmp_path,
    )
    sync, allreduce = found.table()
    assert sync["accuracy"] == pytest.approx(allreduce["accuracy"], abs=0.01)
    assert repr(found) == f"ComparedRuns('{found.path}', 2 of 2 runs)"
    assert ComparisonFolder(found.path).report.exists()
    with pytest.raises(InvalidValue, match="none of sync has 'tau'"):
        shoal.compare(data="digits", strategy="sync", set={"tau": 3}, out=tmp_path)


@pytest.mark.parametrize("pace", ["1,3", [1, 3], (1.0, 3)], ids=repr)
def test_paces_are_a_text_or_a_list(pace, tmp_path):
    options = {"simulated": True, "batch_s": 0.01, "batch_size": 10, "workers": 2, "epochs": 1}
    found = shoal.compare(strategy=["asgd"], pace=pace, max_steps=4, out=tmp_path, **options)
    (cell,) = found.cells
    began, *_, last = (cell.runs[0].steps[rank]["t"][-1] for rank in (0, 1))
    assert last == pytest.approx(3 * began, rel=0.2)
    again = shoal.reports.load_comparison(found.path).comparison.simulation
    assert again.paces(2) == [1.0, 3.0]


def test_a_file_has_a_list_of_paces_and_data_of_the_users_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(SCRIPTS / "mine.py", tmp_path)
    Path("grid.toml").write_text("""
        simulated = true
        [job]
        data = "mine.py:load"
        epochs = 1
        workers = 2
        [simulation]
        batch_s = 0.01
        pace = [1, 2.5]
    """)
    found = report_of(invoke("compare grid.toml --json", tmp_path))
    assert [row["cell"] for row in found["table"]] == ["sync"]
    assert "<title>mine.py:load by seed" in Path(found["report"]).read_text()
    words = f"compare --data {tmp_path}/mine.py:load --strategy sync,eamsgd {SIMULATED} --json"
    found = report_of(invoke(words, tmp_path))
    assert [row["cell"] for row in found["table"]] == ["sync", "eamsgd"]
    assert "<title>mine.py:load by strategy" in Path(found["report"]).read_text()
    jobs = [(Path(row["run_dirs"][0]) / "job.toml").read_text() for row in found["table"]]
    assert ['optimizer = "adam"' in jobs[0], 'optimizer = "sgd"' in jobs[1]] == [True, True]


def test_what_is_measured_is_kept(tmp_path):
    words = "compare digits --simulated --epochs 1 --batch-size 16,32 --max-steps 2 --jobs 2 --json"
    found = report_of(invoke(words, tmp_path))
    text = (Path(found["comparison"]) / "comparison.toml").read_text()
    measured = dict(re.findall(r'"(.*batches of \d+.*)" = (.*)', text))
    assert len(measured) == 2
    assert all(float(seconds) > 0 for seconds in measured.values())


def test_a_run_has_a_page_too(compared):
    run = compared["table"][0]["run_dirs"][0]
    result = CliRunner().invoke(main, ["report", run])
    assert result.exit_code == 0, result.output
    text = Path(result.stdout.strip()).read_text()
    assert f"shoal train {run}/job.toml" in text
    assert "Idle time" in text


def test_unlike_numbers_of_samples_are_told(tmp_path):
    words = f"compare digits --strategy sync,asgd --workers 2 --redundancy 2 {SIMULATED}"
    result = invoke(words, tmp_path)
    told = r"unlike numbers of samples: sync on ([\d,]+), asgd on ([\d,]+)\."
    few, most = (int(n.replace(",", "")) for n in re.search(told, result).groups())
    assert most == 2 * few
    [page] = tmp_path.glob("*/report.html")
    assert re.search(told, page.read_text())


def test_a_run_that_has_failed_says_why(compared, tmp_path):
    run = Path(shutil.copytree(compared["table"][0]["run_dirs"][0], tmp_path / "failed"))
    (run / "summary.json").unlink()
    with (run / "events.jsonl").open("a") as events:
        events.write('{"t": 9.0, "kind": "ending", "node": "scheduler", "reason": "no memory"}\n')
    result = CliRunner().invoke(main, ["report", str(run), "--json"])
    assert report_of(result.stdout)["warnings"] == ["This run has not ended: no memory"]


def test_a_run_without_such_figures_is_refused(tmp_path):
    run = RunFolder.create(tmp_path, "ctr")
    run.write_job('application = "ctr"\n')
    result = CliRunner().invoke(main, ["report", str(run.path)])
    assert result.exit_code == 2
    assert "shoal train ctr" in result.output


def test_a_page_that_cannot_be_written_is_told(compared):
    words = ["report", compared["comparison"], "--out", "/proc/nowhere/report.html"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "no page can be written to /proc/nowhere/report.html" in result.output


def test_a_folder_without_a_run_has_no_page(tmp_path):
    result = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "there is no run at" in result.output
