"""What a seed stands for: how many of whom, under which rules, and on what a network."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from shoal.protocol.server.replication.link import ReplicationOptions
from shoal.protocol.session import SessionOptions
from shoal.protocol.worker.machine import WorkerOptions
from shoal.simulation.network import NetworkOptions
from shoal.tables.spec import Consistency, asp, bsp, ssp

PHASES = ("joining", "view change", "open round", "waiting", "quiet")
BOUNDED, VISITS_BYTES = 0.25, 200  # of the seeds; what their requests are longer by
SAVE_EVERY = 3  # clocks; under ssp, where pushes wait for it, twice that
CHECKPOINT_S = 0.15  # in a quarter of the seeds, where views name the clocks
PROVEN = 0.3  # in which deaths are seen by who started the process
LEASED, BATCH_BYTES = 0.25, 60
MODEL_BYTES = 200  # what requests are longer by where there is a table with an optimizer
GUESTS = "guests"  # a second group of workers, in some seeds
VISITED = 0.4
LARGE, RIGID, RELENTLESS, SUMMING = 0.15, 0.12, 0.25, 0.25  # of the seeds
INCARNATIONS, LARGE_INCARNATIONS = 24, 48  # of members, in all
HEAL_AT_S, HEAL_LATE_S = 6.0, 12.0
SESSION = SessionOptions(
    join_timeout_s=60, heartbeat_s=0.3, resend_s=0.1, silence_s=60, farewell_s=3
)
WORKER = WorkerOptions(
    sync_timeout_s=4.0, probe_s=0.05, probe_max_s=0.4, behind_s=0.005, credit_bytes=200
)
REPLICATION = ReplicationOptions(
    credit_bytes=200,
    resend_s=0.05,
    resend_max_s=0.4,
    chunk_bytes=300,
    drain_s=0.5,
    compare_s=0.2,
    compare_bytes=200,
)


class Plan(msgspec.Struct, frozen=True):
    """What a seed stands for.

    incarnations:  members that there may be, in all
    hosts:         how many the members are on; 0 where nobody says
    elastic:       whether workers may come while the run goes on
    heal_at_s:     until then things go wrong
    relentless:    faults go on for as long, overlap, and are longer than silence
    sums:          whether workers that sum around a ring are simulated as well
    """

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
    guests: int
    guests_rule: Consistency
    guests_leased: bool
    incarnations: int = INCARNATIONS
    hosts: int = 0
    elastic: bool = True
    heal_at_s: float = HEAL_AT_S
    relentless: bool = False
    sums: bool = False

    @staticmethod
    def of(seed: int) -> Plan:
        """The plan of a seed: a pure function."""
        random = Random(seed * 7919 + 17)
        rules = [bsp(), bsp(), ssp(0, "round_end"), ssp(random.randint(1, 3)), asp()]
        servers, workers = random.randint(1, 3), random.randint(2, 4)
        replicas = min(servers, Random(seed * 23 + 9).choice([1, 2, 2, 3]))
        rule = random.choice(rules)
        bounded = Random(seed * 19 + 7).random() < BOUNDED
        by_time = seed % 4 == 0
        leased = Random(seed * 37 + 5).random() < LEASED
        aside = Random(seed * 43 + 11)  # what draws from it shifts nothing else
        guests = aside.randint(1, 2) * (aside.random() < VISITED)
        plan = Plan(
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
                + MODEL_BYTES
                + bounded * VISITS_BYTES
                + leased * BATCH_BYTES,
            ),
            replicas=replicas,
            kill_server=random.random() < (0.15 if replicas == 1 else 0.8),
            faults=random.randint(7, 10),
            clocks=26 if servers * workers > 3 else 44,
            bounded=bounded,
            leased=leased,
            save_every=0 if by_time else SAVE_EVERY * (1 if rule.apply_at == "round_end" else 2),
            checkpoint_s=CHECKPOINT_S * by_time,
            proves_death=Random(seed * 41 + 3).random() < PROVEN,
            guests=guests,
            guests_rule=aside.choice(rules),
            guests_leased=aside.random() < LEASED,
        )
        return plan._varied(Random(seed * 61 + 29))

    def _varied(self, random: Random) -> Plan:
        """Larger clusters, on several hosts, of a fixed size, and with faults to the end."""
        more: dict[str, Any] = {"hosts": random.choice([0, 0, 2, 3])}
        more["sums"] = random.random() < SUMMING
        if random.random() < RELENTLESS:
            more |= {"relentless": True, "heal_at_s": HEAL_LATE_S}
        if random.random() < RIGID:
            more |= {"elastic": False, "guests": 0}
        if random.random() < LARGE:
            servers = random.randint(4, 8)
            more |= {
                "servers": servers,
                "workers": random.randint(5, 16),
                "replicas": random.choice([1, 2, 3, 4]),
                "clocks": random.randint(8, 11),
                "incarnations": LARGE_INCARNATIONS,
            }
        return msgspec.structs.replace(self, **more)

    def for_menu(self) -> Plan:
        """The same, where nothing else goes wrong and one server may die without a loss."""
        more: dict[str, Any] = {"replicas": max(self.replicas, 2), "servers": max(self.servers, 3)}
        more |= {"relentless": False, "heal_at_s": HEAL_AT_S, "elastic": True}
        return msgspec.structs.replace(self, kill_server=False, faults=0, **more)

    def phases(self) -> tuple[str, ...]:
        """The phases that this cluster goes through."""
        if self.consistency.apply_at == "round_end":
            return (*PHASES, "open round", "open round")  # it is short
        absent = ("open round",) if self.consistency.name == "ssp" else ("open round", "waiting")
        return tuple(phase for phase in PHASES if phase not in absent)
