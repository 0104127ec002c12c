"""Checkpoints that are asked for while a run is under way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import shoal
from shoal.apps.checkpoint import save
from shoal.cli import main
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.errors import DataMissing, Refused, RequestTimeout
from shoal.reports.events import load_run
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from tests.real.texts import pattern
from tests.real.waiting import until

pytestmark = pytest.mark.real


@pytest.fixture
def training(tmp_path):
    """A run of `shoal train` without checkpoint options, which goes on until it is ended."""
    command = [sys.executable, "-m", "shoal", "train", "digits", "--epochs", "100000"]
    with subprocess.Popen(
        [*command, "--servers", "2", "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            until(
                lambda: any(
                    '"step"' in each.read_text() for each in tmp_path.glob("*/events.jsonl")
                )
            )
            [folder] = tmp_path.iterdir()
            yield folder
        finally:
            process.terminate()


def test_a_run_that_was_started_without_checkpoints_writes_one_and_is_resumed(training):
    result = CliRunner().invoke(main, ["checkpoint", str(training), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    [folder] = found["folders"].values()
    assert found["complete"]
    assert Checkpoints(training / "checkpoints").choose() == found["clock"]
    saved = SavedShards(Path(folder))
    [table] = saved.tables
    # an epoch ends with a clock of its own, in which nobody pushes
    [steps] = {each["batches"] for each in load_run(training).events if each["kind"] == "begin"}
    updates = found["clock"] - found["clock"] // (steps + 1)
    assert {int(n) for _, each in saved.parts(table) for n in each["updates"]} == {updates}
    assert len(list(Path(folder).glob("worker-*"))) == 2


def test_a_checkpoint_has_dense_and_sparse_tables_and_waits_for_the_workers(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        address = start_cluster(processes, 2, 1, out=str(tmp_path))
        with shoal.connect(address) as client:
            client.create_table(shoal.TableSpec("w", 8, consistency=shoal.bsp()))
            client.create_table(shoal.TableSpec("e", row_shape=(2,), kind="sparse"))
            keys = torch.tensor([5, 7], dtype=torch.uint64)
            client.push("e", torch.ones(2, 2), keys).wait()
            planned = client.checkpoint()
            [at] = planned.folders.values()
            with pytest.raises(RequestTimeout, match=pattern("checkpoint_now.not_in_time")):
                save(address, "", 0.3)
            for _ in range(planned.clock):
                client.push("w", torch.ones(8))
                client.advance().wait()
            until(lambda: not Checkpoints(Path(at).parent).lacks(planned.clock))
            saved = SavedShards(Path(at))
            assert saved.merged("w")["rows"].flatten().tolist() == [planned.clock] * 8
            assert sorted(saved.merged("e")["keys"].tolist()) == [5, 7]


def test_servers_without_a_folder_refuse_and_a_run_that_has_ended_is_named(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        address = start_cluster(processes, 1, 1)
        with shoal.connect(address) as client:
            with pytest.raises(Refused, match=pattern("checkpoint_now.no_folder_what_to_do")):
                client.checkpoint()
            with pytest.raises(Refused, match=pattern("checkpoint_now.no_folder")):
                save(address, "", 5.0)
    with pytest.raises(DataMissing, match=pattern("checkpoint_now.ended")):
        save(str(folder.path), "", 5.0)
