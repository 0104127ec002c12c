"""One example of every message, with values at their limits, for round trips of any kind."""

from __future__ import annotations

from shoal.keys import KeyRange
from shoal.protocol import messages as m
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

EXAMPLES: list[m.Message] = [
    m.Challenge(m.PROTOCOL_VERSION, bytes(range(240, 256)), True),
    m.Hello(m.PROTOCOL_VERSION, "job", "node-b", "worker", bytes(16), b"proof"),
    m.Welcome("node-a", b"", True),
    m.Denied("wrong token"),
    m.Join("node-a", "server", "unix:///tmp/x/server.sock", "host-a", 2, 1 << 22),
    m.Join("node-a", "server", "", "host-a", memory=4 << 30),
    m.Joined(7, 0, "run-20260101-120000"),
    m.NotJoined("the run is complete"),
    m.NotJoined("too many", True),
    m.Heartbeat(7, (2, 5)),
    m.HeartbeatSeen(("worker-3",)),
    m.Busy("server-0", "snapshot (shard.py:210)"),
    m.ProcessHeartbeat("server-0", 7, 1 << 40, "snapshot (shard.py:210)", True),
    m.Drain((2, 6)),
    m.Drained((2, 6)),
    m.Freeze((2, 6), (2, 5)),
    m.Frozen((2, 6), ((1, 4), (2, FOREVER)), (m.GroupProgress("eval", 4, 3, 9),), True, _VIEW),
    m.Frozen((2, 6), ((1, 4),), folder="/runs/a/checkpoints"),
    m.OpenShards((2, 9), (2, 5), ((_SPEC, (KeyRange(0, 1 << 40),)),)),
    m.ShardsOpened(7, (2, 9), (("w", (KeyRange(0, 5),)),), (("v", KeyRange(0, 5), "no memory"),)),
    m.RefuseView((2, 6), (2, 5)),
    m.ViewRefused((2, 6), (2, 5)),
    m.Synced(7, ((0, 1 << 62, 5),)),
    m.WaitTimes(7, ((8, 0.25), (1 << 40, 1e9))),
    m.StatusRequest(),
    m.StatusReply(
        "server-0", (m.Waits("pull w[0:9)", "waits for worker-0", 1, (("worker-1", 2.5),)),)
    ),
    m.StatusReply("scheduler", (), _VIEW, (("worker-0", 0.75),), 5.0),
    m.DeathReport("host-a", 1 << 22),
    m.DeathReportSeen(1 << 22),
    m.DeathReportSeen(7, True),
    m.CheckpointRequest(3, 39),
    m.CheckpointPlanned(3, 40, 1 << 40, (("host-a", "/runs/a/checkpoints"),)),
    m.CheckpointRefused(3, "no worker is at work"),
    m.Leave(7),
    m.LeaveRefused("it is the last server"),
    m.NewView(_VIEW),
    m.Declare(7, _SPEC),
    m.NotDeclared("weights", "another table has that name"),
    m.BarrierArrival(7, "epoch", 3, ("workers", "servers")),
    m.BarrierReleased("epoch", 3),
    m.Lease(7, 5, 3, 1 << 40, True),
    m.Leased(5, 2, 9, 1 << 40, False),
    m.NotLeased("others have other data"),
    m.Finish(7),
    m.Finished(),
    m.ConfirmRows(3, (1, 2)),
    m.RowsConfirmed(7, 3, (1, 2)),
    m.End(),
    m.End("a worker aborted"),
    m.End("server-1 died with the last replica of w[0:9)", "lost"),
    m.End("the others waited for it", "dropped"),
    m.End("it was silent", "dead"),
    m.Abort("loss is nan"),
    m.Request((2, 5), 7, 1, 0, 0),
    m.Request(
        (2, 5), 7, 9, 8, 3, (m.Part(0, 0, 10), m.Part(0, 4, 9, 2)), FOREVER,
        (m.Part(0, 0, 1 << 62),), 0.25, (1e-3, None), True,
    ),
    m.Reply(7, 9, (2, 5), "applied", "", 3, 2.5, 1 << 40),
    m.Reply(7, 9, (2, 5), "waiting", "waits for worker-1 (clock 2)"),
    m.Replicate(
        (2, 5), 0, (2,), 7, "push", (m.Part(0, 3, 7, 2),), (9,), (0.5,), ((11, 4, 3),), -1, 0.25
    ),
    m.Replicate(
        (2, 5), 3, (2, 0), 0, "check", (m.Part(1, 0, 4096, 7),), (9,), (None,), digest=1 << 31
    ),
    m.ReplicateAck((2, 5), 1, ((0, 3, 9),)),
    m.StateChunk(
        (2, 5), 3, m.Part(0, 0, 10), 9, 5, 0, 2, False,
        m.ReplicaHistory((m.SeenRequests(11, 4, ((5, (m.Part(0, 0, 10),)),)),), ((3, 2.5),), 4),
    ),
    m.Probe((2, 5), 7, 9, True),
    m.Nudge("worker-1 waits for your push"),
    m.Computing(7),
    m.Piece((1 << 32) - 1, 3, 0, True, 1 << 40),
    m.MissingPieces(0, 7, (0, 5), (1 << 31,), 3),
    m.PieceProbe(1, 2, 3),
    m.SumAck(1, 1 << 62),
    m.NeighbourPiece("params", 1, 2, 3, 1 << 40, {0: 4, 7: 1 << 62}),
    m.NeighbourProbe("", 0, 1 << 62, 3),
    m.NeighbourAck("params", 1, 2, 3, (0, 5)),
    m.WorkerLeft(1, "worker-3", 0),
    m.Malformed("not a message"),
]  # fmt: skip
