"""A cluster that is started as ps-lite's are: by variables alone, five times the same command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.texts import text
from tests.transport.rigs import free_port

pytestmark = pytest.mark.real

RUN = [sys.executable, "-m", "shoal", "run"]
SCRIPT = Path(__file__).parent / "scripts" / "ps_lite_pushes.py"
ROLES = ("scheduler", "server", "server", "worker", "worker")
SIZES = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2"}
TOKEN = "a token of sixteen characters"


@pytest.fixture
def started(tmp_path):
    """Starts the processes of a cluster; all are ended at the end, if they live."""
    processes = []

    def start(*words, roles=ROLES, **variables):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "DMLC_", "PS_"))}
        env |= SIZES | {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port())}
        env |= {"XDG_CACHE_HOME": str(tmp_path), **variables}
        logs = [(tmp_path / f"{number}.out", tmp_path / f"{number}.err") for number in range(5)]
        for role, (out, err) in zip(roles, logs, strict=False):
            with out.open("w") as stdout, err.open("w") as stderr:
                command, own = [*RUN, *words, str(SCRIPT)], {**env, "DMLC_ROLE": role}
                pipes = {"stdout": stdout, "stderr": stderr}
                processes.append(subprocess.Popen(command, cwd=tmp_path, env=own, **pipes))
        codes = [each.wait(timeout=240) for each in processes]
        return codes, [(out.read_text(), err.read_text()) for out, err in logs[: len(codes)]]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def sums(told):
    """What the workers have printed: the rank as the variable and as Shoal has it, and the sums."""
    lines = "".join(out for out, _ in told).splitlines()
    return sorted(line for line in lines if line.startswith("rank "))


EXACT = ["rank 0 0 has 400.0 400.0", "rank 1 1 has 400.0 400.0"]


def test_variables_alone_start_a_cluster_over_tcp(started):
    codes, told = started(SHOAL_TOKEN=TOKEN)
    assert (codes, sums(told)) == ([0] * 5, EXACT)


def test_sums_are_exact_although_every_tenth_message_is_dropped(started):
    codes, told = started(
        SHOAL_TOKEN=TOKEN, PS_DROP_MSG="10", PS_RESEND="1", PS_RESEND_TIMEOUT="20"
    )
    assert (codes, sums(told)) == ([0] * 5, EXACT)


def test_a_local_cluster_needs_no_network_and_no_token(started):
    codes, told = started(DMLC_LOCAL="1", PS_VERBOSE="2")
    assert (codes, sums(told)) == ([0] * 5, EXACT)
    assert all(re.search(r"DEBUG shoal\.messages: (to|from) ", log) for _, log in told)
    assert not any("listening at tcp" in log for _, log in told)


def test_options_of_roles_are_those_of_all_and_others_are_refused(started):
    codes, told = started("--engine", "ray", roles=("worker",), DMLC_LOCAL="1")
    assert codes == [2]
    assert text("ps_lite.not_of_a_role") in told[0][1]
