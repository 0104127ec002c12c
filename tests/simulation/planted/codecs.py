"""Bugs of encoded pushes, each planted by replacing one method."""

from contextlib import contextmanager
from struct import pack, unpack
from unittest.mock import patch

import msgspec
import numpy as np

from shoal.protocol.layout import Layout
from shoal.protocol.server.replication.replay import Replayer, RoundLoad
from shoal.protocol.server.requests.decoding import Decoder
from shoal.protocol.worker import rerouting
from shoal.protocol.worker.routing import Router
from shoal.pushes import Door
from shoal.pushes.encoder import Encoder
from shoal.pushes.pulled import PulledDifferences
from shoal.tables.dense.references import References
from shoal.tables.dense.shard import DenseShard
from shoal.tables.differences import NO_NAME


@contextmanager
def encoded_twice_on_rerouting():
    """What is sent again to other servers is encoded anew, and the residual with it."""
    right_ready, right_cut = Door.ready, rerouting._asked
    begun = {}  # by address of what was sent: its encoder, push, weight and clock

    def ready(self, ask, clock):
        sent = right_ready(self, ask, clock)
        for raw, op in zip(ask.pushes, sent.pushes, strict=True):
            if op.sizes:
                address = np.frombuffer(op.values, np.uint8).ctypes.data
                begun[address] = self._encoder(op.table), op, raw, ask.weight, clock
        return sent

    def asked(server_part, view):
        pushes, pulls = right_cut(server_part, view)
        return [anew(op) if op.sizes else op for op in pushes], pulls

    def anew(op):
        address = np.frombuffer(op.values, np.uint8).ctypes.data
        for start, (encoder, whole, raw, weight, clock) in begun.items():
            if start <= address < start + whole.values.nbytes:
                first, size = op.rows.start - raw.rows.start, encoder.spec.row_bytes
                values = raw.values[first * size : (first + len(op.rows)) * size]
                return encoder.encode(msgspec.structs.replace(op, values=values), weight, clock)[0]
        return op

    with patch.object(Door, "ready", ready), patch.object(rerouting, "_asked", asked):
        yield


@contextmanager
def residual_lost_on_refusal():
    with patch.object(Door, "settled", lambda self, ask, outcome: None):
        yield


@contextmanager
def failed_pushes_go_back_although_they_count():
    """Whatever has failed goes back, also what a server may count."""

    def settled(self, ask, outcome):
        for op in ask.pushes if outcome.error is not None else ():
            if op.sizes:
                self._encoder(op.table).give_back(op, ask.weight, op.rows)

    with patch.object(Door, "settled", settled):
        yield


@contextmanager
def orphans_do_not_count():
    """Of a request that fails all parts go back, because one was refused."""
    right = Door.settled

    def settled(self, ask, outcome):
        if outcome.uncounted:
            rows = tuple((op.table, op.rows) for op in ask.pushes)
            outcome = msgspec.structs.replace(outcome, uncounted=rows)
        right(self, ask, outcome)

    with patch.object(Door, "settled", settled):
        yield


@contextmanager
def bound_in_encoded_bytes():
    """The credit of a server counts what is sent, not what it takes there."""
    right = Router._encoded

    def encoded(self, pushes, server_part, buffers):
        return 0, right(self, pushes, server_part, buffers)[1]

    with patch.object(Router, "_encoded", encoded):
        yield


@contextmanager
def sizes_of_other_fragments():
    """The fragments of a push are counted from the table's first row."""

    def encoded_span(self, rows, sizes, first, last):
        start, stop = self.rows(first, last)
        size = self._spec.fragment_rows
        one, other = (rows.start + start) // size, -(-(rows.start + stop) // size)
        before, wanted = sum(sizes[:one]), tuple(sizes[one:other])
        return before, before + sum(wanted), wanted

    with patch.object(Layout, "encoded_span", encoded_span):
        yield


@contextmanager
def replicas_decode_nothing():
    """A server whose push another has passed on applies what is in its staging memory."""

    def decode(self, changes):
        for each in changes:
            if each.staged is not None and each.staged.encoded is not None:
                each.staged.is_decoded()

    with patch.object(Replayer, "_decode", decode):
        yield


@contextmanager
def residual_is_not_added():
    """What was left out stays there."""
    right = Encoder._begin

    def begin(self, rows, fragment, weight):
        index, residual, _ = right(self, rows, fragment, weight)
        return index, residual, 0.0

    with patch.object(Encoder, "_begin", begin):
        yield


@contextmanager
def replicas_merge_without_the_last_push():
    """A round that comes as its encoded pushes lacks one where it is merged again."""
    right = RoundLoad.with_ways

    def with_ways(self, ways):
        found = right(self, ways)
        return found[:-1] if len(found) > 1 else found

    with patch.object(RoundLoad, "with_ways", with_ways):
        yield


@contextmanager
def what_goes_back_begins_where_the_largest_fragments_would():
    """The number of a fragment's bytes depends on its values; here all have the most."""
    right = Encoder.give_back

    def give_back(self, op, weight, rows):
        most = tuple(fragment.nbytes for fragment in self._encoding.cut(op.rows))
        lacks = bytes(max(0, sum(most) - op.values.nbytes))
        values = memoryview(bytes(op.values) + lacks)
        right(self, msgspec.structs.replace(op, sizes=most, values=values), weight, rows)

    with patch.object(Encoder, "give_back", give_back):
        yield


@contextmanager
def difference_of_the_wrong_clock():
    """A worker adds whatever difference comes to what it has."""

    def move(self, number, fragment, data, reference):
        if self._names[number] != NO_NAME and len(data) == fragment.nbytes:
            data = pack("<q", self._names[number]) + bytes(data[8:])
        return right(self, number, fragment, memoryview(data), reference)

    right = PulledDifferences._move
    with patch.object(PulledDifferences, "_move", move):
        yield


@contextmanager
def differences_are_added_again():
    """A worker that has pulled twice after one round adds the difference twice."""
    right = PulledDifferences._move

    def move(self, number, fragment, data, reference):
        moved = right(self, number, fragment, data, reference)
        if fragment.pieces and moved and len(data) == fragment.nbytes:
            self._names[number] = unpack("<q", data[:8])[0]
        return moved

    with patch.object(PulledDifferences, "_move", move):
        yield


@contextmanager
def references_stay_behind():
    """A server that gets the rows of others has names of its own for its references."""

    def install(self, first, values, names):
        right(self, first, values, [name ^ 1 for name in names])

    right = References.set
    with patch.object(References, "set", install):
        yield


@contextmanager
def followers_advance_no_reference():
    """Only the head of a chain, which merges a round, moves its references."""
    with patch.object(DenseShard, "_advance", lambda self, touched: None):
        yield


@contextmanager
def rows_are_encoded_between_answers():
    """Each answer encodes its rows, and the server goes on meanwhile."""
    right = Decoder.encoded

    def encoded(self, replica, rows, sizes):
        nbytes = Layout(replica.shard.spec).nbytes(len(rows))
        return self._long_work.do([replica], nbytes, lambda: right(self, replica, rows, sizes))

    with (
        patch.object(Decoder, "encode", lambda self, wanted: None),
        patch.object(Decoder, "encoded", encoded),
    ):
        yield
