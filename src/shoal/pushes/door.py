"""Door: the one way of a worker's values to its machine, and of encoded rows back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any

import msgspec
import numpy as np

from shoal.errors import NotFinite, RoundClosed, UsageError
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Exchange, Forget, PullOp, PushOp
from shoal.pushes.encoder import Encoder, Undo
from shoal.pushes.finite import Finite
from shoal.pushes.pulled import Pulled, PulledDifferences, PulledKeys, PulledRows, is_whole
from shoal.pushes.row_encoder import RowEncoder
from shoal.tables.encoding import LayerFigures
from shoal.tables.spec import TableSpec

_UNKNOWN = object()  # of a table that no exchange has named yet


class Door:
    """Looks at the values that a worker pushes, and encodes and decodes those with a codec.

    Args:
        table: the function that returns the specification of a table by its name.
        seed: the seed of random bits.
        rank: the function that returns the worker's rank, for its random bits.
    """

    def __init__(
        self,
        table: Callable[[str], TableSpec],
        seed: int = 0,
        rank: Callable[[], int] = lambda: 0,
    ) -> None:
        self._table = table
        self._seed = seed
        self._rank = rank
        self._finite = Finite(table)
        self._encoders: dict[
            str, Encoder | RowEncoder | None
        ] = {}  # by a table's name as it was said
        self._pulled: dict[str, Pulled | None] = {}  # the same, of rows that are pulled
        self._loaded: dict[str, dict[str, Any]] = {}  # by table: what an earlier run had left out
        self._measures = False  # whether figures were asked for
        self._start_clock = 0  # of this run, for random bits
        self._lock = RLock()  # a client's threads may push to one table

    def ready(self, ask: Exchange, clock: int) -> Exchange:
        """Return an exchange as it is sent: its values are finite, and encoded where that is asked.

        An exchange that assigns is left as it is, and ends what was left out of its rows. Rows that
        servers encode are pulled to memory of their own, which is decoded when they have landed.

        Args:
            ask: the exchange.
            clock: the clock of its pushes.

        Raises:
            NotFinite: a value is NaN or infinite and the table's policy is "reject", or it is too
                large for its codec.
        """
        for pull in ask.pulls:  # most tables have no codec: one look-up each
            if self._pulled.get(pull.table, _UNKNOWN) is not None and self._decoder_of(pull):
                pulls = tuple(map(self._pull, ask.pulls))
                landed = partial(self._landed, ask.pulls, pulls)
                ask = msgspec.structs.replace(ask, pulls=pulls, landed=landed, route=None)
                break
        for op in ask.pushes:
            if self._encoders.get(op.table, _UNKNOWN) is not None and self._any_encoder(op.table):
                return self._encoded(ask, max(clock, ask.at) + self._start_clock)
        return ask if ask.assign else self._finite.checked(ask)

    def _decoder_of(self, op: PullOp) -> Pulled | None:
        """Return what decodes the rows of a pull; None if they come as they are."""
        try:
            found = self._pulled[op.table]
        except KeyError:
            with self._lock:
                found = self._pulled[op.table] = self._new_pulled(op.table)
        if found is None or op.exact or op.sizes or not isinstance(op.out, memoryview):
            return None
        return found if found.takes(op, op.out) else None

    def _new_pulled(self, table: str) -> Pulled | None:
        spec = self._table(table)
        if not spec.server_codec:
            return None
        for each in self._pulled.values():  # the same table by another name
            if each is not None and each.spec.name == spec.name:
                return each
        if spec.sparse:
            return PulledKeys(spec)
        return PulledDifferences(spec) if spec.delta else PulledRows(spec)

    def _pull(self, op: PullOp) -> PullOp:
        decoder = self._decoder_of(op)
        if decoder is None:
            return op
        sizes, nbytes = decoder.asked(op)
        return msgspec.structs.replace(op, out=np.empty(nbytes, np.uint8).data, sizes=sizes)

    def _landed(self, asked: Sequence[PullOp], sent: Sequence[PullOp]) -> Exchange | None:
        """Decode the rows that have come.

        Args:
            asked: the pulls, with the memory that gets the rows.
            sent: the same as they were sent.

        Returns:
            None, or the exchange to be made now, because some rows are still missing: they have
            come as differences to others than this worker has.

        Raises:
            BadEncoding: they are no encoding of rows.
        """
        missing, again = False, []
        for op, pulled in zip(asked, sent, strict=True):
            if pulled.sizes and not op.sizes:
                decoder = self._decoder_of(op)
                assert decoder is not None
                assert isinstance(pulled.out, memoryview)
                missing |= not decoder.land(op, pulled.sizes, pulled.out)
                if isinstance(decoder, PulledDifferences):  # all of one time
                    again.append(op)
        return self.ready(Exchange(pulls=tuple(again)), 0) if missing else None

    def _encoder(self, table: str) -> Encoder | None:
        """Return the encoder of a dense table."""
        found = self._any_encoder(table)
        return None if isinstance(found, RowEncoder) else found

    def _any_encoder(self, table: str) -> Encoder | RowEncoder | None:
        try:
            return self._encoders[table]
        except KeyError:
            with self._lock:
                return self._encoders[table] if table in self._encoders else self._make(table)

    def _make(self, table: str) -> Encoder | RowEncoder | None:
        spec = self._table(table)
        encoder: Encoder | RowEncoder | None = None
        if spec.encodes:
            known = {each.spec.name: each for each in self._encoders.values() if each is not None}
            encoder = known.get(spec.name)
            if encoder is None and spec.sparse:
                encoder = RowEncoder(spec, self._seed, self._rank)
            elif encoder is None:
                encoder = Encoder(spec, self._seed, self._rank)
                if self._measures:
                    encoder.figures()
                if spec.name in self._loaded:
                    encoder.load(self._loaded.pop(spec.name))
        self._encoders[table] = encoder
        return encoder

    def encoders(self) -> Iterator[Encoder]:
        """Yield the encoders of the tables that this worker has pushed to."""
        found = {}
        for each in [*self._encoders.values()]:
            if each is not None and not isinstance(each, RowEncoder):
                found[id(each)] = each
        yield from found.values()

    def _encoded(self, ask: Exchange, clock: int) -> Exchange:
        pushes: list[PushOp] = []
        done: list[tuple[Encoder, Undo]] = []
        with self._lock:
            for op in ask.pushes:
                encoder, rows = self._encoder(op.table), self._any_encoder(op.table)
                try:
                    if isinstance(rows, RowEncoder) and not ask.assign and rows.takes(op, clock):
                        op = self._encode_rows(rows, op, clock)
                    elif encoder is not None and ask.assign:
                        encoder.forget(op.rows, op.keys)
                    elif encoder is not None and _encodes(encoder, op, clock):
                        op, undo = self._encode(encoder, op, ask.weight, clock)
                        done.append((encoder, undo))
                    elif not ask.assign:
                        op = self._finite.checked_push(op)
                except NotFinite:  # nothing is sent, so nothing is left out
                    for each, undo in reversed(done):
                        each.undo(undo)
                    raise
                pushes.append(op)
            self._decodes(ask, pushes)
        return msgspec.structs.replace(ask, pushes=tuple(pushes), route=None)

    def _decodes(self, ask: Exchange, pushes: Sequence[PushOp]) -> None:
        """Decode the pushes of which the worker has to know what servers make of them."""
        for given, op in zip(ask.pushes, pushes, strict=True):
            encoder = self._encoder(op.table)
            if op.decodes and op.sizes and encoder is not None:
                encoder.decode(op, given.values)

    def _encode(
        self, encoder: Encoder, op: PushOp, weight: float, clock: int
    ) -> tuple[PushOp, Undo]:
        try:
            return encoder.encode(op, weight, clock)
        except NotFinite as error:
            replaced = self._finite.checked_push(op)
            if replaced is op:  # finite, and too large for the codec
                raise NotFinite(f"table {op.table!r}: {error}. Nothing was sent") from None
            return encoder.encode(replaced, weight, clock)

    def _encode_rows(self, encoder: RowEncoder, op: PushOp, clock: int) -> PushOp:
        try:
            return encoder.encode(op, clock)
        except NotFinite as error:
            replaced = self._finite.checked_push(op)
            if replaced is op:  # finite, and too large for the codec
                raise NotFinite(f"table {op.table!r}: {error}. Nothing was sent") from None
            return encoder.encode(replaced, clock)

    def forget(self, request: Forget) -> None:
        """Forget what was left out of rows that another worker assigns."""
        for name, rows in request.rows:
            with self._lock:
                encoder = self._encoder(name)
                if encoder is not None:
                    encoder.forget(rows)

    def figures(self) -> list[LayerFigures]:
        """Return what codecs made of one push to each table, and measure the next pushes.

        The first call returns nothing.
        """
        with self._lock:
            found = [figures for each in self.encoders() for figures in each.figures()]
            self._measures = True
            return found

    def state_dict(self) -> dict[str, dict[str, np.ndarray]]:
        """Return, by table, what was left out and has not been sent."""
        with self._lock:
            own = {each.spec.name: each.state() for each in self.encoders() if each.state()}
            return {**self._loaded, **own}

    def load_state_dict(
        self, state: Mapping[str, Mapping[str, np.ndarray]], start_clock: int = 0
    ) -> None:
        """Continue as the worker that `state_dict` is of, before anything is pushed.

        The tables need not be declared yet.

        Args:
            state: the state.
            start_clock: the clock of that worker, which is 0 in this run.

        Raises:
            UsageError: this worker has pushed already.
        """
        if any(each.residual is not None for each in self.encoders()):
            raise UsageError("residuals are loaded before the first push with a codec")
        self._start_clock = start_clock
        self._loaded = {name: dict(of_table) for name, of_table in state.items()}

    def settled(self, ask: Exchange, outcome: Outcome) -> None:
        """Keep what no server will count of an exchange that `ready` has encoded.

        Args:
            ask: the exchange as it was sent.
            outcome: its outcome.
        """
        used = set()
        late = isinstance(outcome.error, RoundClosed)
        for name, rows in outcome.uncounted:
            encoder = self._encoder(name)
            if encoder is None or (late and encoder.covered):
                continue
            for number, op in enumerate(ask.pushes):
                if not op.sizes or self._encoder(op.table) is not encoder:
                    continue
                if op.rows.covers(rows) and (number, rows) not in used:
                    used.add((number, rows))
                    encoder.give_back(op, ask.weight, rows)
                    break


def _encodes(encoder: Encoder, op: PushOp, clock: int) -> bool:
    return clock >= encoder.begins_at and is_whole(encoder.spec, op, op.values)
