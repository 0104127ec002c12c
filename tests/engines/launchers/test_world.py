"""Which world a process is in, by the variables that launchers set."""

import pytest

from shoal.engines.launchers.world import World, without_world, world_of
from shoal.errors import InvalidValue

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0", "MASTER_PORT": "29500",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
ALONE = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
JOB = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
STEP = {
    **JOB, "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("env", "launcher"),
    [(TORCHRUN, "torchrun"), (OPEN_MPI, "mpirun"), (MPICH, "mpirun"), (STEP, "srun")],
)
def test_each_launchers_variables_say_the_world(env, launcher):
    world = world_of(env)
    assert (world.launcher, world.rank, world.size) == (launcher, 3, 4)
    assert (world.local_rank, world.local_size, world.one_host) == (1, 2, False)


def test_a_process_of_no_launcher_has_no_world():
    assert world_of({}) is None
    assert world_of({"MASTER_ADDR": "node-0", "SLURM_JOB_ID": "7"}) is None


def test_a_batch_script_is_no_rank():
    """Slurm says PROCID 0 and NTASKS 4 there, and has started one process."""
    assert world_of(JOB) is None


def test_a_world_of_one_is_none():
    assert world_of({**MPICH, "PMI_RANK": "0", "PMI_SIZE": "1"} | ALONE) is None


def test_the_innermost_launcher_counts():
    assert world_of({**STEP, **TORCHRUN}).launcher == "torchrun"
    assert world_of({**STEP, **OPEN_MPI}).launcher == "mpirun"


def test_srun_with_a_plugin_of_mpi_is_srun():
    """It sets some of MPICH's variables, too, and not those of ranks on this host."""
    world = world_of({**STEP, "PMI_RANK": "3", "PMI_SIZE": "4"})
    assert (world.launcher, world.local_size) == ("srun", 2)


@pytest.mark.parametrize(
    ("launcher", "found"), [("auto", "torchrun"), ("torchrun", "torchrun"), ("slurm", "srun")]
)
def test_a_launcher_may_be_named(launcher, found):
    assert world_of({**STEP, **TORCHRUN}, launcher).launcher == found


def test_no_launcher_may_be_asked_for():
    assert world_of(TORCHRUN, "none") is None


def test_a_launcher_that_has_started_nothing_is_refused():
    with pytest.raises(InvalidValue, match=r"--launcher mpi.*OMPI_COMM_WORLD_SIZE or PMI_SIZE"):
        world_of(TORCHRUN, "mpi")
    with pytest.raises(InvalidValue, match="launcher is one of auto, none, torchrun, mpi, slurm"):
        world_of(TORCHRUN, "pbs")


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"RANK": "0"}, "torchrun has set RANK=0 and no WORLD_SIZE.*SHOAL_LAUNCHER=none"),
        ({"PMI_SIZE": "4"}, "mpirun has set PMI_SIZE=4 and no PMI_RANK"),
        ({"PMI_SIZE": "4", "PMI_RANK": "1"}, "PMI_RANK=1, PMI_SIZE=4 and no MPI_LOCALRANKID"),
        ({**TORCHRUN, "RANK": "4"}, "RANK=4, WORLD_SIZE=4, .*there is no such rank"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank 2 of 2: there is no such rank"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "local rank 1 of 5: there is no such rank"),
        ({**TORCHRUN, "RANK": "one"}, "RANK='one' is no number"),
        ({**TORCHRUN, "WORLD_SIZE": "-4"}, "WORLD_SIZE='-4' is no number"),
        ({**TORCHRUN, "WORLD_SIZE": ""}, "WORLD_SIZE='' is no number"),
    ],
)
def test_variables_that_make_no_sense_are_named_with_their_launcher(env, told):
    with pytest.raises(InvalidValue, match=told):
        world_of(env)


def test_other_workers_than_ranks_are_refused_with_both_numbers():
    world = world_of(OPEN_MPI)
    world.check_workers(4)
    told = r"--workers 2 in a world of 4: mpirun has started 4.*OMPI_COMM_WORLD_SIZE=4.*none"
    with pytest.raises(InvalidValue, match=told):
        world.check_workers(2)


@pytest.mark.parametrize("env", [TORCHRUN, OPEN_MPI, MPICH, STEP])
def test_children_are_no_ranks(env):
    left = without_world({**env, "PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf"})
    assert world_of(left) is None
    assert left["PATH"] == "/bin"
    assert left["SLURM_CONF"] == "/etc/slurm.conf"  # which Slurm's own commands need


def test_nodes_of_a_step_may_have_different_numbers_of_tasks():
    env = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x1),1,3(x2)", "SLURM_STEP_NUM_TASKS": "9"}
    sizes = [world_of({**env, "SLURM_LOCALID": "0", "SLURM_NODEID": str(n)}) for n in range(4)]
    assert [each.local_size for each in sizes] == [2, 1, 3, 3]
    assert isinstance(sizes[0], World)
