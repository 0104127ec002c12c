"""Meets the other ranks by MPI, twice; with a word, the last rank fails then and others wait."""

import os
import sys
import time

from shoal.engines.launchers.rendezvous import rendezvous_of
from shoal.engines.launchers.world import World
from shoal.errors import InvalidValue

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
place = rendezvous_of(World("mpirun", rank, 3, 0, 1, ""), {})  # as on hosts of their own
said = {"rank": rank, "text": "é" * rank}


def answer(heard):
    assert [each["text"] for each in heard] == ["", "é", "éé"]
    return {"ranks": "".join(str(each["rank"]) for each in heard)}


def refuses(heard):
    raise InvalidValue("refused")


found = place.meet(said, answer, 5.0)
try:
    place.meet({}, refuses, 5.0)
except InvalidValue as error:
    sys.stdout.write(f"{rank} {found['ranks']} {error.message}\n")
if len(sys.argv) > 1:
    sys.stdout.flush()
    if rank == 2:
        raise SystemError("rank 2 fails")
    time.sleep(60)  # until mpirun ends this rank
