"""Meets the other ranks by MPI, twice."""

import sys

from mpi4py import MPI

from shoal.engines.launchers.rendezvous import MpiRendezvous
from shoal.errors import InvalidValue

comm = MPI.COMM_WORLD
place = MpiRendezvous(comm)
said = {"rank": comm.Get_rank(), "text": "é" * comm.Get_rank()}


def answer(heard):
    assert [each["text"] for each in heard] == ["", "é", "éé"]
    return {"ranks": "".join(str(each["rank"]) for each in heard)}


def refuses(heard):
    raise InvalidValue("refused")


found = place.meet(said, answer, 5.0)
try:
    place.meet({}, refuses, 5.0)
except InvalidValue as error:
    sys.stdout.write(f"{comm.Get_rank()} {found['ranks']} {error.message}\n")
