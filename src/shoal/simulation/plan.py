"""The plan of a seed: cluster size, consistency rules, network and faults."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import msgspec

from shoal.protocol.server.chains.link import ReplicationOptions
from shoal.protocol.session_options import SessionOptions
from shoal.protocol.worker.options import WorkerOptions
from shoal.simulation.draws import Draws
from shoal.simulation.network import NetworkOptions
from shoal.tables.consistency import Consistency, Quorum, asp, bsp, ssp

PHASES = ("joining", "view change", "open round", "waiting", "quiet")
BOUNDED, VISITS_BYTES = 0.25, 200  # share of the seeds; extra bytes of their requests
SAVE_EVERY = 3  # clocks; twice that under ssp, where pushes wait for it
BY_TIME, CHECKPOINT_S = 0.25, 0.15  # share of the seeds with checkpoints by time; their period
PROVEN = 0.3  # share of the seeds with death reports
LEASED, BATCH_BYTES = 0.25, 60  # share of the seeds; extra bytes of their requests
MODEL_BYTES = 200  # extra bytes of requests with an optimizer table
GUESTS = "guests"  # a second group of workers, in some seeds
VISITED = 0.4  # share of the seeds with guests
LARGE, FIXED, RELENTLESS, SUMMING, SIMPLE = 0.15, 0.12, 0.25, 0.25, 0.25  # shares of the seeds
BORROWING = 0.6  # the same
STREAMS, COSTLY = 0.35, 0.3  # shares of the seeds
LONG, LONG_BYTES = 0.3, (1, 100, 400, 2000)  # share of the seeds; work that is long, in bytes
QUORUM = 0.3  # share of the seeds with rounds
GRACES_S = (0.0, 0.0, 0.01, 0.05, 0.3)
UNHEARD = 0.44  # share of the seeds with checkpoints by time
RESTLESS = 0.4  # share of the elastic seeds
INCARNATIONS, LARGE_INCARNATIONS = 24, 48  # members started in a run, at most
HEAL_AT_S, HEAL_LATE_S = 6.0, 12.0
EPOCHS, BATCHES = 2, 16  # of leased batches
STAMP_ROWS, STAMP_FRAGMENT = 36, 3  # the table that shows torn pushes
SESSION = SessionOptions(
    join_timeout_s=60,
    heartbeat_s=0.3,
    resend_s=0.1,
    scheduler_timeout_s=60,
    farewell_s=3,
    thaw_s=0.3,
)
WORKER = WorkerOptions(
    sync_timeout_s=4.0, probe_s=0.05, probe_max_s=0.4, behind_s=0.005, credit_bytes=200
)
REPLICATION = ReplicationOptions(
    credit_bytes=200,
    resend_s=0.05,
    resend_max_s=0.4,
    chunk_bytes=300,
    compare_s=0.2,
    compare_bytes=200,
)


class Plan(msgspec.Struct, frozen=True):
    """The plan of a seed.

    incarnations:  the largest number of incarnations in the run; members that are refused have none
    hosts:         the number of hosts; 0 if members name none
    elastic:       whether workers may join during the run
    heal_at_s:     the time when faults end
    constant_faults: whether faults continue until then, overlap, and exceed the failure time-out
    moving_rows:   whether servers come and go all the time, so that rows move
    sums:          whether all-reduce around a ring is simulated as well
    as_simple:     whether the same cluster is simulated as well with simple requests
    simple:        whether each request pushes or pulls one dense table, which has one replica:
                   servers have a fast path for these
    costly:        whether events take time
    long_bytes:    the bytes from which work is done outside of the servers' loops
    unheard:       whether the scheduler is cut off as servers adopt its views
    borrows:       whether pushes may stay in their sender's memory until they are applied
    """

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
    checkpoint_every_s: float
    proves_death: bool
    guests: int
    guests_rule: Consistency
    guests_leased: bool
    incarnations: int = INCARNATIONS
    hosts: int = 0
    elastic: bool = True
    heal_at_s: float = HEAL_AT_S
    constant_faults: bool = False
    moving_rows: bool = False
    sums: bool = False
    as_simple: bool = False
    simple: bool = False
    costly: bool = False
    unheard: bool = False
    borrows: bool = False
    long_bytes: float = inf

    @staticmethod
    def of(seed: int) -> Plan:
        """Return the plan of a seed, which depends on the seed alone."""
        draws = Draws(seed, "plan")
        rules = [bsp(), bsp(), ssp(0, "round_end"), ssp(draws["staleness"].randint(1, 3)), asp()]
        servers, workers = draws["servers"].randint(1, 3), draws["workers"].randint(2, 4)
        replicas = min(servers, draws["replicas"].choice([1, 2, 2, 3]))
        rule, network = draws["rule"].choice(rules), draws["network"]
        bounded, leased = draws.happens("bounded", BOUNDED), draws.happens("leased", LEASED)
        by_time = draws.happens("checkpoints by time", BY_TIME)
        plan = Plan(
            servers,
            workers,
            rule,
            NetworkOptions(
                loss=network.choice([0.0, 0.03, 0.06]),
                duplicate=network.choice([0.0, 0.03, 0.08]),
                reorder=network.choice([0.0, 0.3, 0.6]),
                stall=network.choice([0.0, 0.02]),
                jitter_s=network.choice([0.0005, 0.002, 0.01]),
                link_bytes=network.choice([4600, 4600, 4600, 6000])
                + MODEL_BYTES
                + bounded * VISITS_BYTES
                + leased * BATCH_BYTES,
                streams=draws.happens("streams", STREAMS),
            ),
            replicas=replicas,
            kill_server=draws.happens("server dies", 0.15 if replicas == 1 else 0.8),
            faults=draws["number of faults"].randint(8, 11),
            clocks=26 if servers * workers > 3 else 44,
            bounded=bounded,
            leased=leased,
            save_every=0 if by_time else SAVE_EVERY * (1 if rule.apply_at == "round_end" else 2),
            checkpoint_every_s=CHECKPOINT_S * by_time,
            proves_death=draws.happens("proven deaths", PROVEN),
            guests=draws["guests"].randint(1, 3) * draws.happens("visited", VISITED),
            guests_rule=draws["guests' rule"].choice(rules),
            guests_leased=draws.happens("guests' leases", LEASED),
            hosts=draws["hosts"].choice([0, 0, 2, 3]),
            sums=draws.happens("sums", SUMMING),
            as_simple=draws.happens("simple", SIMPLE),
            costly=draws.happens("costly", COSTLY),
            long_bytes=_long_bytes(draws["long work"]),
            borrows=draws.happens("borrows", BORROWING),
            unheard=by_time and draws.happens("unheard", UNHEARD),
        )
        return plan._varied(draws)._closing(draws["quorum"])

    def _closing(self, random: Random) -> Plan:
        """Return the plan with rounds that close without some workers, in some seeds."""
        if self.consistency.apply_at != "round_end" or random.random() >= QUORUM:
            return self
        quorum = Quorum(random.randint(1, self.workers), random.choice(GRACES_S))
        rule = msgspec.structs.replace(self.consistency, closes=quorum)
        return msgspec.structs.replace(self, consistency=rule, leased=False)

    def _varied(self, draws: Draws) -> Plan:
        """Return the plan with variations: large, fixed size, constant faults."""
        more: dict[str, Any] = {}
        if draws.happens("constant faults", RELENTLESS):
            more |= {"constant_faults": True, "heal_at_s": HEAL_LATE_S}
        if draws.happens("fixed size", FIXED):
            more |= {"elastic": False, "guests": 0}
        elif draws.happens("moving rows", RESTLESS):
            more["moving_rows"] = True
        if draws.happens("large", LARGE):
            random = draws["large cluster"]
            more |= {
                "servers": random.randint(4, 8),
                "workers": random.randint(5, 16),
                "replicas": random.choice([1, 2, 3, 4]),
                "clocks": random.randint(8, 11),
                "incarnations": LARGE_INCARNATIONS,
                "long_bytes": max(self.long_bytes, LONG_BYTES[2]),  # or all of it takes too long
            }
        return msgspec.structs.replace(self, **more)

    def for_fault_schedule(self) -> Plan:
        """Return the plan without other faults, and with replicas to survive one server's death."""
        more: dict[str, Any] = {"replicas": max(self.replicas, 2), "servers": max(self.servers, 3)}
        more |= {
            "constant_faults": False,
            "moving_rows": False,
            "heal_at_s": HEAL_AT_S,
            "elastic": True,
        }
        return msgspec.structs.replace(self, kill_server=False, faults=0, **more)

    def of_simple_requests(self) -> Plan:
        """Return the plan of the same cluster with simple requests."""
        more: dict[str, Any] = {"bounded": False, "leased": False, "guests": 0}
        more |= {"replicas": 1, "kill_server": False, "sums": False, "as_simple": False}
        return msgspec.structs.replace(self, simple=True, consistency=asp(), **more)

    def for_guests(self) -> Plan:
        """Return the plan with the second group's workload in place of the first group's."""
        rule, leased = self.guests_rule, self.guests_leased
        more: dict[str, Any] = {"consistency": rule, "leased": leased, "bounded": False}
        return msgspec.structs.replace(self, clocks=self.clocks // 2, **more)

    def phases(self) -> tuple[str, ...]:
        """Return the phases that this cluster goes through."""
        if self.consistency.apply_at == "round_end":
            return (*PHASES, "open round", "open round")  # short phases
        absent = ("open round",) if self.consistency.name == "ssp" else ("open round", "waiting")
        return tuple(phase for phase in PHASES if phase not in absent)


def _long_bytes(random: Random) -> float:
    return random.choice(LONG_BYTES) if random.random() < LONG else inf
