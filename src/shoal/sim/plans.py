"""What a seed stands for: how many of whom, under which rules, and on what a network."""

from __future__ import annotations

from random import Random

import msgspec

from shoal.sim.faults import PHASES
from shoal.sim.network import NetworkOptions
from shoal.tables.spec import Consistency, asp, bsp, ssp

BOUNDED, VISITS_BYTES = 0.25, 200  # of the seeds; what their requests are longer by
SAVE_EVERY = 3  # clocks; under ssp, where pushes wait for it, twice that
CHECKPOINT_S = 0.15  # in a quarter of the seeds, where views name the clocks
PROVEN = 0.3  # in which deaths are seen by who started the process
LEASED, BATCH_BYTES = 0.25, 60


class Plan(msgspec.Struct, frozen=True):
    """What a seed stands for."""

    seed: int
    servers: int
    workers: int
    consistency: Consistency
    network: NetworkOptions
    replicas: int
    kill_server: bool
    faults: int
    clocks: int
    bounded: bool
    leased: bool
    save_every: int
    checkpoint_s: float
    proves_death: bool

    @staticmethod
    def of(seed: int) -> Plan:
        """The plan of a seed: a pure function."""
        random = Random(seed * 7919 + 17)
        rules = [bsp(), bsp(), ssp(0, "close"), ssp(random.randint(1, 3)), asp()]
        servers, workers = random.randint(1, 3), random.randint(2, 4)
        replicas = min(servers, Random(seed * 23 + 9).choice([1, 2, 2, 3]))
        rule = random.choice(rules)
        bounded = Random(seed * 19 + 7).random() < BOUNDED
        by_time = seed % 4 == 0
        leased = Random(seed * 37 + 5).random() < LEASED
        return Plan(
            seed,
            servers,
            workers,
            rule,
            NetworkOptions(
                loss=random.choice([0.0, 0.03, 0.06]),
                duplicate=random.choice([0.0, 0.03, 0.08]),
                reorder=random.choice([0.0, 0.3, 0.6]),
                stall=random.choice([0.0, 0.02]),
                jitter_s=random.choice([0.0005, 0.002, 0.01]),
                link_bytes=random.choice([4600, 4600, 4600, 6000])
                + bounded * VISITS_BYTES
                + leased * BATCH_BYTES,
            ),
            replicas=replicas,
            kill_server=random.random() < (0.15 if replicas == 1 else 0.8),
            faults=random.randint(7, 10),
            clocks=26 if servers * workers > 3 else 44,
            bounded=bounded,
            leased=leased,
            save_every=0 if by_time else SAVE_EVERY * (1 if rule.settles == "close" else 2),
            checkpoint_s=CHECKPOINT_S * by_time,
            proves_death=Random(seed * 41 + 3).random() < PROVEN,
        )

    def phases(self) -> tuple[str, ...]:
        """The phases that this cluster goes through."""
        if self.consistency.settles == "close":
            return (*PHASES, "open round", "open round")  # it is short
        absent = ("open round",) if self.consistency.name == "ssp" else ("open round", "parked")
        return tuple(phase for phase in PHASES if phase not in absent)
