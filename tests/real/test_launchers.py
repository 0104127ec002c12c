"""Ranks that launchers start: torchrun and mpirun, and the variables of MPICH and of Slurm."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.engines.launchers.world import without_world
from shoal.reports.events import read_events
from shoal.storage.checkpoints import Checkpoints
from tests.real.waiting import until
from tests.transport.rigs import free_port

pytestmark = pytest.mark.real

SCRIPT = str(Path(__file__).parent / "scripts" / "ranked.py")
SHOAL = [sys.executable, "-m", "shoal"]
TRAIN = [*SHOAL, "train", "digits", "--epochs", "1", "--servers", "2", "--seed", "1"]
MPIRUN = [str(Path(sys.executable).with_name("mpirun")), "--oversubscribe", "--allow-run-as-root"]


def begin(words, **env):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env={**without_world(os.environ), **env}, **pipes)


def done(*processes):
    """What each has printed; all of them have ended with status 0."""
    ends = [each.communicate(timeout=120) for each in processes]
    for each, (_, errors) in zip(processes, ends, strict=True):
        assert each.returncode == 0, errors
    return [printed for printed, _ in ends]


def mpich(words):
    """Four ranks on one host, as MPICH's mpirun starts them."""
    for rank in range(4):
        place = {"MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "4"}
        yield begin(words, PMI_RANK=str(rank), PMI_SIZE="4", **place)


def slurm(words):
    """Two nodes of two tasks, as `srun -N2 -n4` starts them, all on this machine."""
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    place = {"SHOAL_RENDEZVOUS": f"127.0.0.1:{free_port()}"}  # its nodes have no names here
    for rank in range(4):
        own = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 2)}
        yield begin(words, SLURM_LOCALID=str(rank % 2), **own, **step, **place)


def torchrun(words):
    """Two nodes of two processes."""
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    how = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3", *place, "--no-python"]
    for _ in range(2):
        yield begin([sys.executable, "-m", "torch.distributed.run", *how, *words])


def mpirun(words):
    yield begin([*MPIRUN, "-n", "4", *words])


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


ALL = [mpirun, mpich, slurm, torchrun]


def losses(out):
    [folder] = out.iterdir()
    return steps_of(folder)


def steps_of(folder):
    steps = [each for each in read_events(folder / "events.jsonl") if each["kind"] == "step"]
    return {(each["node"], each["step"]): each["loss"] for each in steps}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The losses of a run on this machine without a launcher."""
    found = {}

    def wanted(strategy):
        if strategy not in found:
            out = tmp_path_factory.mktemp("here")
            done(begin([*TRAIN, "--workers", "4", "--strategy", strategy, "--out", str(out)]))
            found[strategy] = losses(out)
        return found[strategy]

    return wanted


@pytest.mark.parametrize(
    ("launcher", "strategy"), [*((each, "sync") for each in ALL), (mpirun, "bmuf")]
)
def test_a_job_trains_as_ranks_bit_by_bit_as_it_does_here(tmp_path, launcher, strategy, wanted):
    printed = done(*launcher([*TRAIN, "--strategy", strategy, "--out", str(tmp_path)]))
    assert losses(tmp_path) == wanted(strategy)
    assert "".join(printed).count("test accuracy") == 1  # rank 0 tells the result


def test_sums_by_mpi_train_as_those_on_the_ring(tmp_path, wanted):
    how = ["--strategy", "allreduce", "--collective", "mpi", "--out", str(tmp_path)]
    [printed] = done(*mpirun([*TRAIN, *how]))
    found, want = losses(tmp_path), wanted("allreduce")
    assert found.keys() == want.keys()
    assert max(abs(found[at] - want[at]) for at in want) < 1e-5
    assert "test accuracy" in printed


def test_a_script_sums_every_dtype_by_mpi():
    script = str(Path(__file__).parent / "scripts" / "sums.py")
    process = begin([*MPIRUN, "-n", "3", sys.executable, script], SHOAL_COLLECTIVE="mpi")
    [printed] = done(process)
    assert printed.count("all as they should be") == 3


def test_a_rank_that_is_killed_within_a_sum_by_mpi_ends_all(tmp_path):
    how = ["--strategy", "allreduce", "--epochs", "100000", "--collective", "mpi"]
    [process] = mpirun([*TRAIN, *how, "--out", str(tmp_path)])
    until(lambda: [*tmp_path.glob("*/events.jsonl")], "it begins")
    [events] = tmp_path.glob("*/events.jsonl")
    until(lambda: '"kind":"step"' in events.read_text(), "it trains")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = [each for each in children if b"train" in Path(f"/proc/{each}/cmdline").read_bytes()]
    os.kill(int(ranks[-1]), signal.SIGKILL)
    process.communicate(timeout=15)
    assert process.returncode != 0
    assert not [each for each in ranks if is_running(each)]


def test_a_rank_that_leaves_ends_the_sums_of_the_others(tmp_path):
    script = tmp_path / "leaves.py"
    script.write_text(
        "import sys, shoal, torch\ncontext = shoal.init()\n"
        "shoal.all_reduce(torch.ones(3))\n"
        "if context.rank == 1:\n    sys.exit(3)\n"
        "shoal.all_reduce(torch.ones(3))\n"
    )
    process = begin([*MPIRUN, "-n", "2", sys.executable, str(script)], SHOAL_COLLECTIVE="mpi")
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "a worker has ended its work without this sum" in errors


@pytest.mark.parametrize("launcher", ALL)
def test_a_script_joins_the_world_of_its_ranks(launcher):
    printed = "".join(done(*launcher([sys.executable, SCRIPT])))
    lines = sorted(line for line in printed.splitlines() if line.startswith("rank"))
    assert [line.partition(":")[0] for line in lines] == [
        f"rank {rank} of 4, 1 servers" for rank in range(4)
    ]
    assert len({line.partition(":")[2] for line in lines}) == 1


def test_shoal_run_has_the_options_and_the_folder_of_a_run(tmp_path):
    words = [*SHOAL, "run", "--strategy", "diloco", "--set", "tau=5", "--servers", "2"]
    [printed] = done(*mpirun([*words, "--out", str(tmp_path), SCRIPT]))
    assert printed.count("2 servers") == 4
    [folder] = tmp_path.iterdir()
    job = (folder / "job.toml").read_text()
    assert "workers = 4" in job
    assert 'strategy = "diloco"' in job
    assert (folder / "summary.json").exists()


def test_a_group_that_torchrun_starts_again_meets_again(tmp_path):
    """Its two agents count their restarts apart; rank 3 is killed at step 20."""
    mark = tmp_path / "killed"
    nodes = [*torchrun([sys.executable, SCRIPT, "kill", str(mark)])]
    printed = "".join(done(*nodes))
    assert sorted(line[:11] for line in printed.splitlines() if "servers" in line) == [
        f"rank {rank} of 4" for rank in range(4)
    ]
    first, again = map(float, Path(f"{mark}.steps").read_text().split())
    assert first < float(mark.read_text()) < again


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "3"], "--workers 3 in a world of 4"),
        (["--on-worker-loss", "replace"], "mpirun starts no worker again"),
        (["--replicas", "3"], "needs at least 3 servers"),
        (["--collective", "mpi", "--on-timeout", "drop"], "MPI's sums cannot go on without"),
        (["--model", "no such model"], "unknown model"),
    ],
)
def test_what_cannot_be_ends_all_ranks_before_anything_starts(tmp_path, words, told):
    [process] = mpirun([*TRAIN, "--out", str(tmp_path), *words])
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert told in errors
    assert not any(tmp_path.iterdir())


def test_ranks_may_each_have_a_run_of_their_own(tmp_path):
    words = [*SHOAL, "train", "digits", "--epochs", "1", "--workers", "1", "--launcher", "none"]
    done(begin([*MPIRUN, "-n", "2", *words, "--out", str(tmp_path)]))
    assert len([*tmp_path.iterdir()]) == 2


def test_a_rank_that_fails_is_named(tmp_path):
    script = tmp_path / "fails.py"
    fails = "if context.rank == 2:\n    raise ValueError('no data')"
    script.write_text(
        f"import shoal\ncontext = shoal.init()\n{fails}\ncontext.client.barrier('end')\n"
    )
    [process] = mpirun([*SHOAL, "run", "--out", str(tmp_path / "runs"), str(script)])
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "ValueError: no data" in errors


def test_a_run_of_ranks_writes_its_last_checkpoint_and_is_resumed(tmp_path):
    """The results of all ranks are written before it."""
    how = ["--strategy", "easgd", "--servers", "2", "--out", str(tmp_path)]
    done(*mpich([*TRAIN, *how, "--checkpoint-every", "5"]))
    [first] = tmp_path.iterdir()
    assert not [*first.glob("workers/*/state.safetensors")]  # they are in the checkpoint
    again = [*SHOAL, "train", "--resume", str(first), "--epochs", "2"]
    printed = "".join(done(*mpich(again)))
    assert "test accuracy" in printed
    [second] = {*tmp_path.iterdir()} - {first}
    assert "workers = 4" in (second / "job.toml").read_text()


def test_a_run_under_srun_goes_on_without_a_rank_that_is_lost(tmp_path):
    """Its last rank is killed when it has trained for a while; the others end, with a summary."""
    how = ["--strategy", "asgd", "--epochs", "40", "--on-worker-loss", "drop"]
    ranks = [*slurm([*TRAIN, *how, "--out", str(tmp_path)])]
    until(lambda: [*tmp_path.glob("*/events.jsonl")], "it begins")
    [events] = tmp_path.glob("*/events.jsonl")
    of_last = '"node":"worker-3"'
    until(lambda: events.read_text().count(of_last) > 3, "rank 3 trains")
    lost = ranks.pop()
    lost.kill()
    lost.communicate()
    printed = "".join(done(*ranks))
    assert "test accuracy" in printed
    assert (events.parent / "summary.json").exists()


def test_a_file_of_a_job_may_not_have_other_workers_than_ranks(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('data = "digits"\nworkers = 2\n')
    ranks = [*mpich([*SHOAL, "train", str(job), "--out", str(tmp_path)])]
    for each in ranks:
        _, errors = each.communicate(timeout=60)
        assert each.returncode == 2
        assert "--workers 2 in a world of 4" in errors


def test_shoal_train_in_a_script_gives_each_rank_the_result(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import shoal\nif __name__ == '__main__':\n"
        "    result = shoal.train(data='digits', epochs=1, out='runs')\n"
        "    print(round(result.metrics['accuracy'], 6), len(list(result.model.parameters())))\n"
    )
    [printed] = done(
        begin([*MPIRUN, "-n", "2", "-wdir", str(tmp_path), sys.executable, str(script)])
    )
    first, second = printed.split("\n")[:2]
    assert first == second
    assert len([*(tmp_path / "runs").iterdir()]) == 1


def test_a_run_of_ranks_ends_with_the_reason_when_its_scheduler_is_gone(tmp_path):
    """Rank 0's worker waits for a server that is gone, too: it is interrupted."""
    how = ["--epochs", "100000", "--replicas", "2", "--out", str(tmp_path)]
    [process] = mpirun([*TRAIN, *how])
    until(lambda: [*tmp_path.glob("*/events.jsonl")], "it begins")
    [events] = tmp_path.glob("*/events.jsonl")
    until(lambda: '"kind":"step"' in events.read_text(), "it trains")
    pids = json.loads((events.parent / "pids.json").read_text())
    fork_server = Path(f"/proc/{pids['scheduler']}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(fork_server), signal.SIGKILL)
    _, errors = process.communicate(timeout=15)
    assert process.returncode != 0
    assert "scheduler was lost with its host" in errors
    assert "goes on without" not in errors


@pytest.fixture
def apart(tmp_path):
    """Runs a command as the ranks of two nodes, each with a folder of its own under one name."""
    out = tmp_path / "out"
    nodes = [tmp_path / "node-0", tmp_path / "node-1"]
    for each in (out, *nodes):
        each.mkdir()

    def run(*words):
        place = ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--no-python"]
        how = ["--nnodes", "2", "--nproc-per-node", "2", *place]
        started = []
        for number, node in enumerate(nodes):
            alone = ["unshare", "-m", "sh", "-c", f'mount --bind {node} {out} && exec "$@"', "sh"]
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--node-rank", str(number)]
            started.append(begin([*alone, *torchrun, *how, *words, "--out", str(out)]))
        done(*started)

    run.out, run.nodes = out, nodes
    return run


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts need root"
)


@needs_mounts
def test_nodes_that_share_no_folder_leave_one(apart, wanted):
    train = [*TRAIN, "--strategy", "sync", "--checkpoint-every", "5"]
    apart(*train)
    first, second = apart.nodes
    assert losses(first) == wanted("sync")
    [run], [other] = first.iterdir(), second.iterdir()
    assert (run.name, (run / "job.toml").exists()) == (other.name, True)
    assert not (other / "job.toml").exists(), "they share a folder"
    for own in other.rglob("*.safetensors"):
        if own.name != "state.safetensors":  # the last checkpoint has it
            name = own.relative_to(other)
            assert (run / name).read_bytes() == own.read_bytes(), name
    servers = {each.name for each in (run / "shards").iterdir()}
    assert servers == {"server-0.safetensors", "server-1.safetensors"}
    assert json.loads((run / "summary.json").read_text()).get("left_on_hosts") is None
    assert len(Checkpoints(run / "checkpoints", workers=4).complete()) > 1

    job = (run / "job.toml").read_text()
    shutil.rmtree(second)  # it has nothing of the run that is resumed but what code it ran
    (second / run.name).mkdir(parents=True)
    (second / run.name / "job.toml").write_text(job)
    apart(*SHOAL, "train", "--resume", str(apart.out / run.name), "--resume-at", "5")
    [again] = [each for each in first.iterdir() if each != run]
    before, after = steps_of(run), steps_of(again)
    assert len(after) == 4, "the events of a rank are missing"
    assert {at: before[at] for at in after} == after


def test_an_error_of_one_rank_before_they_meet_ends_all_at_once(tmp_path):
    """Rank 2 alone lacks the run that is resumed."""
    train = [*SHOAL, "train", "--resume", "before", "--out", str(tmp_path / "out")]
    (tmp_path / "2").mkdir()
    done_run = subprocess.run([*TRAIN, "--out", "runs"], cwd=tmp_path, check=False,
                              capture_output=True)  # fmt: skip
    assert done_run.returncode == 0
    [run] = (tmp_path / "runs").iterdir()
    run.rename(tmp_path / "before")
    ranks = []
    for rank in range(4):
        place = {"MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "4"}
        env = {**without_world(os.environ), "PMI_RANK": str(rank), "PMI_SIZE": "4", **place}
        cwd = tmp_path / ("2" if rank == 2 else "")
        pipe = {"stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen(train, env=env, cwd=cwd, **pipe))
    told = [each.communicate(timeout=60)[1] for each in ranks]
    assert all(each.returncode for each in ranks)
    assert "before is not the folder of a run" in told[2]
    assert "rank 2: before is not the folder of a run" in told[0]


@needs_mounts
def test_nodes_that_share_no_folder_have_the_text_that_rank_0_has_read(apart):
    apart(*SHOAL, "train", "word2vec", "--epochs", "1", "--dim", "8", "--servers", "2")
    [run] = apart.nodes[0].iterdir()
    assert (run / "vectors.txt").stat().st_size > 1000
    assert (apart.nodes[1] / run.name / "inputs" / "vocabulary").is_dir()
