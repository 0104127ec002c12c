"""CodecTimes: the simulated seconds that codecs take.

A worker takes its time before a push is sent and after rows have come; a server when a request
comes. A server encodes rows once for all workers: each request takes an equal share of that. Of
sums over the workers what is gathered counts, and neither casts nor the products of `powersgd`;
rows of sparse tables do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoal.collective.base import AllGather
from shoal.protocol.machine import Event, Received
from shoal.protocol.messages.requests import EncodedRequest
from shoal.protocol.requests import Exchange, Start
from shoal.tables.encoding import Encoding
from shoal.tables.spec import TableSpec

Table = Callable[[str], TableSpec]


class CodecTime(NamedTuple):
    """The seconds that a codec takes for a value.

    Attributes:
        encode_s: to encode it, with its residual.
        decode_s: to decode it.
        nbytes: the bytes that it becomes.
    """

    encode_s: float = 0.0
    decode_s: float = 0.0
    nbytes: float = 4.0


class CodecTimes:
    """The seconds that the codecs of a job take.

    Args:
        times: the times by codec, as `str` has it.
        workers: the number of workers.
    """

    def __init__(self, times: Mapping[str, CodecTime], workers: int) -> None:
        self._times = times
        self._workers = workers
        self._of_tables: dict[tuple[str, bool], CodecTime] = {}

    def of_table(self, spec: TableSpec, pulled: bool = False) -> CodecTime:
        """Return the mean times of the values of a table, of which some have no codec."""
        key = spec.name, pulled
        if key not in self._of_tables:
            self._of_tables[key] = self._mean(spec, pulled)
        return self._of_tables[key]

    def _mean(self, spec: TableSpec, pulled: bool) -> CodecTime:
        if not (spec.server_codec if pulled else spec.encodes):
            return CodecTime()
        total, count = [0.0, 0.0, 0.0], 0
        for fragment in Encoding(spec, pulled).cut(spec.keys):
            for piece in fragment.pieces:
                time = self._times.get(str(piece.codec), CodecTime())
                total = [have + piece.length * more for have, more in zip(total, time, strict=True)]
            count += fragment.length
        return CodecTime(*(each / count for each in total))

    # ------------------------------------------------------------------ workers

    def before(self, request: object, table: Table) -> float:
        """Return the seconds that a worker takes before it sends a request."""
        match request:
            case Start(inner):
                return self.before(inner, table)
            case AllGather(data):
                return sum(time.encode_s * data.nbytes / time.nbytes for time in self._gathered())
            case Exchange(pushes=pushes, assign=False):
                some = [(table(op.table), len(op.rows)) for op in pushes if op.keys is None]
                return sum(self.of_table(of).encode_s * rows * of.width for of, rows in some)
        return 0.0

    def after(self, request: object, table: Table) -> float:
        """Return the seconds that a worker takes for the answer to a request."""
        match request:
            case AllGather(data):
                all_bytes = data.nbytes * (self._workers - 1)
                return sum(time.decode_s * all_bytes / time.nbytes for time in self._gathered())
            case Exchange(pulls=pulls):
                some = [op for op in pulls if op.keys is None and not op.exact]
                pairs = [(table(op.table), len(op.rows)) for op in some]
                return sum(self.of_table(of, True).decode_s * rows * of.width for of, rows in pairs)
        return 0.0

    def _gathered(self) -> list[CodecTime]:
        """Return the times of what is gathered, in equal shares if there are several codecs."""
        share = len(self._times) or 1
        return [
            CodecTime(t.encode_s / share, t.decode_s / share, t.nbytes)
            for t in self._times.values()
        ]

    # ------------------------------------------------------------------ servers

    def of_event(self, event: Event, tables: Sequence[TableSpec]) -> float:
        """Return the seconds that a server takes for the codecs of a request."""
        if not isinstance(event, Received) or not isinstance(event.message, EncodedRequest):
            return 0.0
        request, taken = event.message, 0.0
        for part, sizes in zip(request.pushes, request.sizes, strict=False):
            if sizes and part.keys == -1:
                spec = tables[part.table]
                taken += self.of_table(spec).decode_s * (part.stop - part.start) * spec.width
        for part, sizes in zip(request.pulls, request.pulled, strict=False):
            if sizes and part.keys == -1:
                spec = tables[part.table]
                time = self.of_table(spec, True)
                once = time.encode_s + (time.decode_s if spec.delta else 0.0)
                taken += once * (part.stop - part.start) * spec.width / self._workers
        return taken
