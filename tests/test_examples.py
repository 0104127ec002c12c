"""Every example runs, each way that README says it does."""

import contextlib
import difflib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from shoal.errors import DataMissing
from shoal.storage.checkpoints import Checkpoints

EXAMPLES = Path(__file__).parent.parent / "examples"
SHOAL = [sys.executable, "-m", "shoal"]
PYTHON = [sys.executable]
SHOAL_RUN = [*SHOAL, "run", "--workers", "2", "--servers", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MNIST = Path(os.environ.get("SHOAL_DATA", ".")) / "mnist" / "train-images-idx3-ubyte.gz"

pytestmark = pytest.mark.real
needs_mnist = pytest.mark.skipif(
    not MNIST.exists(), reason=f"no MNIST at {MNIST}: set SHOAL_DATA to a folder that has mnist/"
)


def output_of(command: list[str], folder: Path) -> str:
    """Standard output of a command that has to end well."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def accuracies(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"accuracy (0\.\d+|1\.0+)", text)]


def test_a_codec_of_ones_own(tmp_path):
    codec = str(EXAMPLES / "own_codec.py:FixedPoint:10")
    command = [*SHOAL, "train", "digits", "--epochs", "8", "--codec", codec, "--json"]
    summary = json.loads(output_of([*command, "--servers", "2", "--replicas", "2"], tmp_path))
    assert summary["accuracy"] > 0.85
    [run] = (tmp_path / "shoal-runs").iterdir()
    told = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    layers = [each for each in told if each["kind"] == "codec" and each["codec"] == "fixed:10"]
    assert layers[0]["raw_bytes"] == 2 * layers[0]["encoded_bytes"]


@pytest.mark.parametrize(("how", "workers"), [(PYTHON, 1), (SHOAL_RUN, 2)], ids=["python", "run"])
def test_kv(how, workers, tmp_path):
    text = output_of([*how, str(EXAMPLES / "kv.py")], tmp_path)
    assert f"of {workers}: the sum is" in text


@pytest.mark.parametrize(("how", "workers"), [(PYTHON, 1), (SHOAL_RUN, 2)], ids=["python", "run"])
def test_kv_sparse(how, workers, tmp_path):
    text = output_of([*how, str(EXAMPLES / "kv_sparse.py")], tmp_path)
    assert f"of {workers}: the sum is right" in text


def test_lightning(tmp_path):
    """Two workers train, and one goes on from Lightning's checkpoint."""
    script, quick = str(EXAMPLES / "lightning_shoal.py"), ["--epochs", "4"]
    [before] = accuracies(output_of([*SHOAL_RUN, script, *quick], tmp_path).splitlines()[-1])
    assert before > 0.75
    saved = torch.load(tmp_path / "digits.ckpt", weights_only=True)
    [state] = saved["optimizer_states"]
    assert {"exp_avg", "exp_avg_sq", "step"} <= set(state["state"][0])
    assert saved["global_step"] == state["state"][0]["step"] == 4 * 24  # 750 rows in batches of 32
    more = [*PYTHON, script, "--epochs", "6", "--load", "digits.ckpt", "--save", "more.ckpt"]
    [after] = accuracies(output_of(more, tmp_path).splitlines()[-1])
    assert after > before - 0.02
    saved = torch.load(tmp_path / "more.ckpt", weights_only=True)
    assert saved["optimizer_states"][0]["state"][0]["step"] == 4 * 24 + 2 * 47


def test_the_notebook(tmp_path):
    """All cells run, with bars of each worker, a table of figures, and the refusal it speaks of."""
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, resources=resources).execute()
    cells = [cell.get("outputs", []) for cell in notebook.cells]
    texts = ["".join(map(_text_of, outputs)) for outputs in cells]
    trained = next(text for text in texts if "worker-1" in text)
    assert len(re.findall(r"epoch  10  step +230 ", trained)) == 2  # the last that was shown
    assert re.search(r"accuracy +0\.9", trained)
    assert any("NotImportable: 'halving' was defined" in text for text in texts)
    predicted = re.compile(r"\[0\.\d+ +0\.\d+ *\]")  # numpy pads a number that has fewer digits
    assert any(map(predicted.search, texts))
    images = [out for outputs in cells for out in outputs if "image/png" in out.get("data", {})]
    assert len(images) == 2


def _text_of(output: Any) -> str:
    plain = output.get("data", {}).get("text/plain", output.get("text", ""))
    return re.sub(r"\x1b\[[\d;]*m", "", plain)


@pytest.mark.parametrize("how", [PYTHON, SHOAL_RUN, TORCHRUN], ids=["python", "run", "torchrun"])
def test_own_method(how, tmp_path):
    text = output_of([*how, str(EXAMPLES / "own_method.py")], tmp_path)
    assert "one step of size lr" in text


@pytest.mark.parametrize("how", [PYTHON, SHOAL_RUN], ids=["python", "run"])
def test_own_handler(how, tmp_path):
    text = output_of([*how, str(EXAMPLES / "own_handler.py")], tmp_path)
    assert "[4, 2] items" in text


def test_train_function(tmp_path):
    text = output_of([*PYTHON, str(EXAMPLES / "train_function.py")], tmp_path)
    assert accuracies(text)[0] > 0.88
    assert (tmp_path / text.split("run ")[1].split()[0] / "model.safetensors").exists()
    assert "(10, 64)" in text


def test_own_data(tmp_path):
    words = ["--data", f"{EXAMPLES}/own_data.py:rings", "--epochs", "4"]
    output_of([*SHOAL, "train", *words], tmp_path)
    (run,) = (tmp_path / "shoal-runs").iterdir()
    assert run.name.startswith("own_data-")
    assert json.loads((run / "summary.json").read_text())["accuracy"] > 0.9


def test_job_file(tmp_path):
    output_of([*SHOAL, "train", str(EXAMPLES / "job.toml"), "--json"], tmp_path)
    (run,) = (tmp_path / "shoal-runs").iterdir()
    assert run.name.startswith("digits-example")
    assert (run / "workers" / "1" / "eval.csv").exists()


def test_three_changed_lines_distribute_a_script():
    """Lines that are new or other in the distributed script, its docstring and blank ones aside."""

    def code(name: str) -> list[str]:
        return [line for line in (EXAMPLES / name).read_text().splitlines()[1:] if line]

    difference = difflib.ndiff(code("mnist.py"), code("mnist_shoal.py"))
    changed = [line[2:] for line in difference if line.startswith("+ ")]
    assert len(changed) <= 3, changed


@needs_mnist
@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("mnist.py", PYTHON),
        ("mnist_shoal.py", PYTHON),
        ("mnist_shoal.py", SHOAL_RUN),
        ("mnist_shoal.py", TORCHRUN),
    ],
    ids=["plain", "python", "run", "torchrun"],
)
def test_mnist(script, how, tmp_path):
    found = accuracies(output_of([*how, str(EXAMPLES / script)], tmp_path))
    assert found
    assert min(found) > 0.88


@needs_mnist
def test_in_the_same_order_both_scripts_print_the_same(tmp_path):
    """One worker; what else differs between them is the order of the rows."""
    plain, ours = ((EXAMPLES / name).read_text() for name in ("mnist.py", "mnist_shoal.py"))
    theirs = "sampler=__import__('shoal').Sampler(train, rank=0, world_size=1)"
    (tmp_path / "plain.py").write_text(plain.replace("sampler=RandomSampler(train)", theirs))
    (tmp_path / "ours.py").write_text(ours)
    assert theirs in (tmp_path / "plain.py").read_text()
    one, other = (output_of([*PYTHON, name], tmp_path) for name in ("plain.py", "ours.py"))
    assert accuracies(one) == accuracies(other) != []


@needs_mnist
def test_evaluating_beside_a_run(tmp_path):
    """It sees the accuracy rise, and the end."""
    command = [*SHOAL_RUN, str(EXAMPLES / "mnist_shoal.py")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        while not (found := list(tmp_path.glob("shoal-runs/*/scheduler"))):
            assert run.poll() is None
            time.sleep(0.05)
        beside = [*PYTHON, str(EXAMPLES / "beside.py"), str(found[0].parent)]
        seen = accuracies(output_of(beside, tmp_path))
        trained = accuracies(run.communicate(timeout=60)[0])
    assert run.returncode == 0
    assert len(seen) > 2
    assert seen[0] < seen[-1]
    assert seen[-1] == trained[0] > 0.88


def test_a_transformer_that_is_killed_three_times_ends_with_the_same_weights(tmp_path):
    """Its own script does the rest: two groups, bfloat16, a schedule, clipping, dropout."""
    script, random = EXAMPLES / "transformer.py", Random(11)
    text = script.read_text()
    counted = "            step += 1\n"
    assert text.count(counted) == 1

    def run(path: Path, title: str, resume: list[str]) -> int:
        options = ["--checkpoint-every", "10", "--title", title, *resume]
        words = [*SHOAL_RUN, *options, str(path), "--epochs", "1", "--out", f"{title}.pt"]
        return subprocess.run(words, cwd=tmp_path, timeout=120, check=False).returncode

    assert run(script, "whole", []) == 0
    resume: list[str] = []
    for number in range(3):  # every process of the run at once, at a step of its own
        step = 30 + 15 * number + random.randrange(10)
        kill = f"            if step == {step}: __import__('os').killpg(0, 9)\n"
        killed = tmp_path / f"killed{number}.py"
        killed.write_text(text.replace(counted, counted + kill))
        assert run(killed, killed.stem, resume) != 0
        assert not (tmp_path / f"{killed.stem}.pt").exists()
        if saved := complete(tmp_path, killed.stem):
            resume = ["--resume", str(saved)]
    assert resume
    assert run(script, "rest", resume) == 0
    whole, rest = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "rest"))
    assert all(torch.equal(each, rest["model"][name]) for name, each in whole["model"].items())
    for index, state in whole["optimizer"]["state"].items():
        assert all(
            torch.equal(each, rest["optimizer"]["state"][index][name])
            for name, each in state.items()
        )
    written = output_of([*PYTHON, str(script), "--write", "rest.pt"], tmp_path)
    assert written.startswith("def ")


def complete(folder: Path, title: str) -> Path | None:
    """The folder of a run, once it has a checkpoint that is complete."""
    for run in folder.glob(f"shoal-runs/{title}-*"):
        with contextlib.suppress(DataMissing):
            Checkpoints(run / "checkpoints").choose()
            return run
    return None
