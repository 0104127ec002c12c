"""A replica's place in its chain: a table with one replica is a chain of length one."""

import ast
from pathlib import Path

import pytest

import shoal.protocol.server
from shoal.keys import KeyRange
from shoal.protocol.server.state.replica import NONE, Replica
from shoal.protocol.views import Placement

ROOT = Path(shoal.protocol.server.__file__).parent
MAY_ASK = {"requests/staging.py"}  # routing is by `previous` and `following`, of any chain
ROUTES = {"chains", "replication", "requests/executor.py", "requests/admission.py"}
BESIDE = {
    (0,): (NONE, NONE),
    (0, 1): (NONE, 1),
    (1, 0): (1, NONE),
    (2, 0, 1): (2, 1),
}


def asks_length(tree):
    """Whether a module asks for the length of a chain: `.alone`, or `len()` of a chain."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "alone":
            return True
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len":
            names = {getattr(each, "attr", "") for each in ast.walk(node)}
            if names & {"chain", "in_sync"}:
                return True
    return False


def test_only_staging_asks_whether_a_chain_is_longer_than_one():
    asking = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if asks_length(ast.parse(path.read_text()))
    }
    assert asking == {*MAY_ASK, "state/replica.py"}  # where it is defined


@pytest.mark.parametrize(
    "source", ["if replica.alone: pass", "n = len(replica.chain)", "len(placement.in_sync) > 1"]
)
def test_a_question_for_the_length_of_a_chain_is_found(source):
    assert asks_length(ast.parse(source))


def test_only_routing_asks_who_is_beside_a_replica():
    names = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("previous", "following")
    ]
    rooms = {name.split("/")[0] for name in names} & ROUTES
    asking = rooms | {name for name in names if name.split("/")[0] not in ROUTES}
    assert asking == {*ROUTES, "state/replica.py", "requests/checkpointing.py"}


@pytest.mark.parametrize("chain", BESIDE)
def test_a_replica_knows_the_servers_beside_it(chain):
    replica = Replica(0, 0, Placement(KeyRange(0, 4), chain), shard=None)
    assert (replica.previous, replica.following) == BESIDE[chain]
    assert replica.alone == (len(chain) == 1)


def test_the_last_replica_of_a_chain_waits_for_nobody():
    last = Replica(0, 0, Placement(KeyRange(0, 4), (1, 0)), shard=None)
    head = Replica(0, 0, Placement(KeyRange(0, 4), (0, 1)), shard=None)
    assert (last.count(), last.done) == (1, 1)
    assert (head.count(), head.done) == (1, 0)
