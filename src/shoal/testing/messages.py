"""One example of every message, with values at their limits, for round trips of any kind."""

from __future__ import annotations

from shoal.keys import KeyRange
from shoal.protocol.messages import (
    admin,
    collective,
    handshake,
    hosts,
    membership,
    replication,
    requests,
)
from shoal.protocol.messages.base import PROTOCOL_VERSION, KeyList, Message, Part
from shoal.protocol.views import FOREVER, Member, Placement, View
from shoal.tables.consistency import ssp
from shoal.tables.init import Init
from shoal.tables.spec import Access, TableSpec

_SERVER = Member("node-a", "server", 0, 1, "tcp://127.0.0.1:4000", "host-a")
_WORKER = Member("node-b", "worker", 1, 1 << 62, first_clock=3, last_clock=9)
_SPEC = TableSpec(
    "weights éß漢",
    rows=10,
    row_shape=(2, 3),
    dtype="bfloat16",
    init=Init("normal", a=-0.5, b=1e-300, seed=(1 << 63) - 1),
    access=Access("momentum", {"lr": 0.1, "nesterov": True, "steps": -3, "kind": "x"}),
    consistency=ssp(3),
)
_ARC = Placement(KeyRange(0, 10), (0, 2), 5)
_VIEW = View(
    2, 5, (_SERVER,), (_WORKER,), (_SPEC,), ((_ARC,),), (_WORKER,), "server-1 died", (9, 1 << 40)
)

EXAMPLES: list[Message] = [
    handshake.Challenge(PROTOCOL_VERSION, bytes(range(240, 256)), True),
    handshake.Hello(PROTOCOL_VERSION, "job", "node-b", "worker", bytes(16), b"proof"),
    handshake.Welcome("node-a", b"", True),
    handshake.Denied("wrong token"),
    membership.Join("node-a", "server", "unix:///tmp/x/server.sock", "host-a", 2, "a launch"),
    membership.Join("node-a", "server", "", "host-a", memory=4 << 30),
    membership.Joined(7, 0, "run-20260101-120000"),
    membership.NotJoined("the run is complete"),
    membership.NotJoined("too many", True),
    membership.Heartbeat(7, (2, 5)),
    membership.HeartbeatSeen(("worker-3",)),
    membership.Busy("server-0", "snapshot (shard.py:210)"),
    membership.ProcessHeartbeat("server-0", 7, 1 << 40, "snapshot (shard.py:210)", True),
    membership.Drain((2, 6), 2.0),
    membership.Drained((2, 6)),
    membership.Freeze((2, 6), (2, 5)),
    membership.Frozen(
        (2, 6), ((1, 4), (2, FOREVER)), (membership.GroupProgress("eval", 4, 3, 9),), True, _VIEW
    ),
    membership.Frozen((2, 6), ((1, 4),), folder="/runs/a/checkpoints"),
    membership.OpenShards((2, 9), (2, 5), ((_SPEC, (KeyRange(0, 1 << 40),)),)),
    membership.ShardsOpened(
        7, (2, 9), (("w", (KeyRange(0, 5),)),), (("v", KeyRange(0, 5), "no memory"),)
    ),
    membership.RefuseView((2, 6), (2, 5)),
    membership.ViewRefused((2, 6), (2, 5)),
    membership.Synced(7, ((0, 1 << 62, 5),)),
    membership.WaitTimes(7, ((8, 0.25), (1 << 40, 1e9))),
    hosts.HostHeld("host-a", "/runs/a", "tcp://10.0.0.7:0"),
    hosts.HostAsked(1 << 62, "read", "logs/worker-0.log", 1 << 40, hosts.PIECE_BYTES),
    hosts.HostAsked(3, "put", "inputs/corpus", last=True),
    hosts.HostAnswered(3, 28, "No space left on device"),
    hosts.HostReports(1 << 40, ('{"name": "server-1", "code": -9}',)),
    hosts.HostReportsSeen(1 << 62),
    admin.StatusRequest(),
    admin.StatusReply(
        "server-0", (admin.Waits("pull w[0:9)", "waits for worker-0", 1, (("worker-1", 2.5),)),)
    ),
    admin.StatusReply("scheduler", (), _VIEW, (("worker-0", 0.75),), 5.0),
    admin.DeathReport("a launch", True),
    admin.DeathReportSeen("a launch"),
    admin.DeathReportSeen("another", True),
    admin.CheckpointRequest(3, 39),
    admin.CheckpointPlanned(3, 40, 1 << 40, (("host-a", "/runs/a/checkpoints"),)),
    admin.CheckpointRefused(3, "no worker is at work"),
    membership.Leave(7),
    membership.LeaveRefused("it is the last server"),
    membership.NewView(_VIEW),
    membership.Declare(7, _SPEC),
    membership.NotDeclared("weights", "another table has that name"),
    membership.BarrierArrival(7, "epoch", 3, ("workers", "servers")),
    membership.BarrierReleased("epoch", 3),
    membership.Lease(7, 5, 3, 1 << 40, True),
    membership.Leased(5, 2, 9, 1 << 40, False),
    membership.NotLeased("others have other data"),
    membership.Finish(7),
    membership.Finished(),
    membership.ConfirmRows(3, (1, 2)),
    membership.RowsConfirmed(7, 3, (1, 2)),
    membership.End(),
    membership.End("a worker aborted"),
    membership.End("server-1 died with the last replica of w[0:9)", "lost"),
    membership.End("the others waited for it", "dropped"),
    membership.End("it was silent", "dead"),
    membership.Abort("loss is nan"),
    requests.Request((2, 5), 7, 1, 0, 0),
    requests.Request(
        (2, 5),
        7,
        9,
        8,
        3,
        (Part(0, 0, 10), Part(0, 4, 9, 2)),
        FOREVER,
        (Part(0, 0, 1 << 62),),
        0.25,
        (1e-3, None),
        True,
    ),
    requests.ListedRequest(
        (1, 2),
        5,
        7,
        3,
        2,
        (Part(0, 0, 16384, 2), Part(1, 0, 4)),
        pulls=(Part(0, 0, 16384, 3),),
        lists=(KeyList(b"0123456789abcdef", 0), KeyList(b"", 24)),
    ),
    requests.EncodedRequest(
        (2, 5), 7, 9, 8, 3, (Part(0, 0, 10), Part(0, 4, 9, 2)), sizes=((1, 1 << 62), ())
    ),
    requests.Reply(7, 9, (2, 5), "applied", "", 3, 2.5, 1 << 40),
    requests.Reply(7, 9, (2, 5), "waiting", "waits for worker-1 (clock 2)"),
    replication.Replicate(
        (2, 5), 0, (2,), 7, "push", (Part(0, 3, 7, 2),), (9,), (0.5,), ((11, 4, 3),), -1, 0.25
    ),
    replication.Replicate(
        (2, 5), 3, (2, 0), 0, "check", (Part(1, 0, 4096, 7),), (9,), (None,), digest=1 << 31
    ),
    replication.EncodedReplicate(
        (2, 5), 3, (2,), 7, "push", (Part(0, 3, 7),), (9,), (None,), ((11, 4, 3),), sizes=((5, 9),)
    ),
    replication.ReplicateAck((2, 5), 1, ((0, 3, 9),)),
    replication.StateChunk(
        (2, 5),
        3,
        Part(0, 0, 10),
        9,
        5,
        0,
        2,
        False,
        replication.ReplicaHistory(
            (replication.SeenRequests(11, 4, ((5, (Part(0, 0, 10),)),)),), ((3, 2.5),), 4
        ),
    ),
    requests.Probe((2, 5), 7, 9, True),
    requests.Nudge("worker-1 waits for your push"),
    requests.Computing(7),
    collective.Piece((1 << 32) - 1, 3, 0, True, 1 << 40),
    collective.MissingPieces(0, 7, (0, 5), (1 << 31,), 3),
    collective.PieceProbe(1, 2, 3, (0, 1)),
    collective.SumAck(1, 1 << 62),
    collective.NeighbourPiece("params", 1, 2, 3, 1 << 40, {0: 4, 7: 1 << 62}),
    collective.NeighbourProbe("", 0, 1 << 62, 3),
    collective.NeighbourAck("params", 1, 2, 3, (0, 5)),
    collective.WorkerLeft(1, "worker-3", 0),
    handshake.Malformed("not a message"),
]
