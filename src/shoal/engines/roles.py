"""The programs of a cluster's processes: a scheduler and servers, from start to end.

Importable without torch, so that a scheduler is up in a tenth of a second.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal import factories, registry
from shoal.engines.addresses import advertised, own_address
from shoal.engines.host_memory import table_memory
from shoal.engines.options import SchedulerRole, ServerRole
from shoal.engines.supplying import fetching
from shoal.errors import DataCorrupt, LeftAlone
from shoal.node.disk import Disk
from shoal.node.dropping import drops_of
from shoal.node.launch import host_label, launch_id, listens_at
from shoal.node.node import Node
from shoal.ownership import PRIVATE
from shoal.protocol.machine import Note
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.requests import GoAway
from shoal.protocol.scheduler import notes
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.protocol.scheduler.leases.log import LedgerBegun
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.options import (
    SLOW_SHARE,
    WITHOUT_A_BREAK,
    SchedulerOptions,
    check_options,
)
from shoal.protocol.server.notes import ReplicasDiffer, Unmoved, Unsaved
from shoal.protocol.session import Admitted, LeaveDenied, Session
from shoal.protocol.session_options import SessionOptions
from shoal.protocol.views import ViewId
from shoal.storage.event_log import EventLog
from shoal.storage.files import make_folder
from shoal.storage.journal import Journal
from shoal.storage.lease_log import LeaseLogFile
from shoal.storage.run_folder import RunFolder
from shoal.tables.sizes import bytes_of
from shoal.transport import Identity
from shoal.transport.tcp import await_name, seen_from

if TYPE_CHECKING:
    from shoal.storage.checkpoints import Writer

scheduler_log, server_log = map(logging.getLogger, ("shoal.scheduler", "shoal.server"))

BROKEN_HERE_S = 0.3  # after which a member of this host whose connection broke counts as failed
LOGGED = (  # the scheduler's notes that the event log has
    notes.MemberJoined,
    notes.ViewMade,
    notes.ReplicasCrowded,
    notes.MemberLost,
    notes.ShardUnopened,
    notes.MemberAwaited,
    notes.BatchesLeased,
    notes.BatchesReturned,
    notes.StragglerDropped,
    notes.BarrierOpened,
    notes.JoinDenied,
    notes.RunEnding,
    notes.ViewImpossible,
)


def _scheduler_options(role: SchedulerRole) -> SchedulerOptions:
    """Return the options of a scheduler: those of its role, which have the same names."""
    named = [each for each in SchedulerOptions.__struct_fields__ if hasattr(role, each)]
    said: dict[str, Any] = {each: getattr(role, each) for each in named}
    said["elastic"] = role.elastic or role.on_worker_loss == "replace"
    if role.drop_after_s:
        said |= {"slow_share": WITHOUT_A_BREAK, "slow_window_s": role.drop_after_s}
    else:
        said["slow_share"] = SLOW_SHARE[role.slow_workers]
    run = f"{time.strftime('run-%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    return SchedulerOptions(**said, run=run)


def run_scheduler(**given: Any) -> None:
    """Run the scheduler until the run ends, and raise the error that ended it.

    given:  the fields of `SchedulerRole`
    """
    role = msgspec.convert(given, SchedulerRole)
    options = _scheduler_options(role)
    if role.listen.startswith("unix://"):  # links within a host do not fail: a peer has ended
        options = msgspec.structs.replace(options, broken_s=BROKEN_HERE_S, same_host=True)
    check_options(options)
    configure_log()
    ready_to_serve()
    journal = Journal(Path(role.state)) if role.state else None
    folder = RunFolder(Path(role.folder)) if role.folder else None
    log = _event_log(folder, "scheduler", role.started_at)

    machine = restored(options, journal, role.ledger or LedgerRecord())
    leases = LeaseLogFile(folder.leases) if folder is not None and role.leases else None
    if leases is not None and role.ledger and not machine.restarted:
        leases.append(msgspec.json.encode(LedgerBegun(role.ledger, role.start_clock)))
    disk = Disk(journal, leases)
    me = Identity(SCHEDULER, "scheduler", token=role.token)
    node = Node(
        machine,
        me,
        disk=disk,
        on_note=lambda each: _note_of_scheduler(each, log),
        drops=drops_of(role.drop_messages, SCHEDULER),
    )
    try:
        address = node.listen(role.listen)
        listens_at(address)
        scheduler_log.info("listening at %s", address)
        node.run()
        if journal is not None:
            journal.remove()
    finally:
        if node.counters:
            scheduler_log.info("counters: %s", dict(node.counters))
        node.close()
        disk.close()


def restored(
    options: SchedulerOptions, journal: Journal | None, begun: LedgerRecord
) -> SchedulerMachine:
    """Return the scheduler's machine, which continues from the journal if there is one.

    Raises:
        DataCorrupt, UnknownFormat: the journal is not as a scheduler of this version wrote it
    """
    record = journal.read() if journal is not None else None
    try:
        return SchedulerMachine(options, record, begun)
    except DataCorrupt as error:
        raise journal.damaged(error.message) if journal is not None else error from None


def _note_of_scheduler(each: Note, log: EventLog | None) -> None:
    """Write a note of the scheduler to its log and to the event log of the run."""
    if isinstance(each, notes.ReplicasCrowded) and each.hosts:
        hosts = ", ".join(each.hosts)
        scheduler_log.warning(
            "one host has several replicas of some rows, which would fail together: %s", hosts
        )
    if isinstance(each, LOGGED):
        fields = msgspec.structs.asdict(each)
        fields.pop("node", None)
        scheduler_log.info("%s %s", each.kind, fields)
        if log is not None:
            log.write(each.kind, **fields)


def run_server(**given: Any) -> int:
    """Run a server until the run ends or the server has left.

    given:  the fields of `ServerRole`

    Returns:
        The signal on which it has left, 0 for none.
    """
    import torch

    from shoal.protocol.checkpoint_clocks import CheckpointClocks
    from shoal.protocol.server.machine import ServerMachine
    from shoal.protocol.server.requests.memory import MemoryOptions
    from shoal.protocol.server.requests.requests import RequestOptions
    from shoal.protocol.server.state.shard_store import OpenStore
    from shoal.storage.shards import SavedShards, save_shards
    from shoal.tables.opening import bytes_needed, open_shard

    role = msgspec.convert(given, ServerRole)
    configure_log()
    ready_to_serve()
    for each in role.imports:
        factories.load_module(each)
    if role.script:
        registry.when_unknown(lambda: factories.load_definitions(role.script))
    torch.set_num_threads(role.threads)
    name = f"s-{os.getpid()}-{os.urandom(4).hex()}"
    memory = bytes_of(role.memory) if role.memory else table_memory(role.servers_here)
    left_s = role.init_timeout_s - await_name(role.scheduler, role.init_timeout_s)
    options = SessionOptions(join_timeout_s=left_s, memory=memory)
    host = role.host_label or host_label()
    session = Session(name, "server", "", host, role.rank, options, launch=launch_id())
    folder = RunFolder(Path(role.folder)) if role.folder else None
    node_name = f"server-{role.rank}" if role.rank >= 0 else name
    log = _event_log(folder, node_name, role.started_at)

    opened: OpenStore = open_shard
    if role.init:
        fetched = fetching(role.init, role.rows)
        opened = SavedShards(Path(role.init), fetched).beginning(open_shard)
    clocks = CheckpointClocks(role.checkpoint_every)
    machine = ServerMachine(
        session,
        opened,
        checkpoint_clocks=clocks,
        checkpoint_folder=lambda: str(_checkpoint_folder(role, session) or ""),
        requests=RequestOptions(MemoryOptions(memory, bytes_needed)),
    )
    writer = _checkpoint_writer(role, session, machine.requests.checkpointer.begin_anew)
    node = Node(
        machine,
        Identity(name, "server", token=role.token),
        scheduler=role.scheduler,
        on_note=lambda each: _note_of_server(each, session, log),
        on_save=writer.put if writer is not None else lambda save: None,
        drops=drops_of(role.drop_messages, node_name),
    )
    signals = leaves_on_signals(node)
    try:
        session.announce(_listen(node, role))
        node.send_heartbeats(lambda: session.incarnation)
        node.run()
        if folder is not None and role.save:
            rows = machine.replicas()
            save_shards(folder.shards, session.rank, rows, session.view_id, session.run)
    except LeftAlone as alone:
        server_log.warning("%s", alone)
        raise SystemExit(128 + signals[-1]) from None
    finally:
        if writer is not None:
            writer.close()
        if node.counters:
            server_log.info("counters: %s", dict(node.counters))
        node.close()
        if log is not None:
            for spec, size in machine.sizes():
                log.write("table", table=spec.name, rank=session.rank, **size)
    return signals[-1] if signals else 0


def _listen(node: Node, role: ServerRole) -> str:
    """Listen for other members; return the address that they use."""
    listen = role.listen or own_address(role.scheduler, role.interface)
    address = advertised(seen_from(role.scheduler, node.listen(listen)), role.advertise)
    listens_at(address)
    return address


def _checkpoint_writer(
    role: ServerRole, session: Session, left_out: Callable[[], None]
) -> Writer | None:
    """Return the writer of a server's checkpoints; None if the server has no folder for them."""
    from shoal.storage.checkpoints import Writer

    if not role.folder and not role.out:
        return None

    def folder() -> Path:
        found = _checkpoint_folder(role, session)
        assert found is not None
        make_folder(found.parent, PRIVATE)
        return found

    def origin() -> tuple[str, ViewId]:
        return session.run, session.view_id

    return Writer(folder, role.start_clock, left_out, role.keep_checkpoints, origin=origin)


def _checkpoint_folder(role: ServerRole, session: Session) -> Path | None:
    """Return the folder for checkpoints; the run has a name once this server has joined."""
    if role.folder:
        return RunFolder(Path(role.folder)).checkpoints
    return RunFolder(Path(role.out, session.run).absolute()).checkpoints if role.out else None


def _note_of_server(each: Note, session: Session, log: EventLog | None) -> None:
    """Write a note of a server to its log and to the event log of the run."""
    match each:
        case Admitted() if log is not None:
            log.write("joined", role="server", rank=session.rank)
        case ReplicasDiffer(table, rows, version):
            server_log.error(
                "a replica differs from the head of its chain: %s%s at version %s",
                table,
                rows,
                version,
            )
            if log is not None:
                log.write("differs", table=table, rows=str(rows))
        case Unmoved():
            server_log.error("rows cannot be moved to another server: %s", each.reason)
        case Unsaved():
            server_log.error("a checkpoint stays incomplete: %s", each.reason)
        case LeaveDenied():
            server_log.warning("cannot leave: %s", each.reason)


def leaves_on_signals(node: Node) -> Sequence[int]:
    """Make the server move its rows and leave on SIGTERM or Ctrl-C; on a second one, leave at once.

    Returns:
        The signals that have been received so far, a list that grows.
    """
    came: list[int] = []

    def leave(number: int, _: object) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else interrupt)
        server_log.info("leaving after all rows are moved; send the signal again to end at once")
        node.ask(GoAway())

    interrupt = signal.default_int_handler
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    return came


def ready_to_serve() -> None:
    """Prepare a process for an event loop that other processes wait for.

    The limit of file descriptors, two for each member, is raised as far as this user may.
    Imported objects are left out of garbage collections, which would spend 80 ms on them.
    """
    gc.freeze()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def configure_log() -> None:
    """Log plain lines to standard error, which the engine sends to the run's folder."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def _event_log(folder: RunFolder | None, node: str, started_at: float) -> EventLog | None:
    return EventLog(folder.events, node, started_at) if folder is not None else None
