"""Mutated messages: fields at their boundaries, tuples that are too long, ids learnt elsewhere."""

import math
from random import Random

import msgspec

from shoal.protocol.limits import KEYS_MAX, PARTS_ASKED_MAX, PARTS_MAX, WINDOW
from shoal.protocol.messages.base import SAME, Message
from shoal.testing.messages import EXAMPLES
from shoal.transport.wire import HEADER_MAX

INTS = [
    *(0, 1, 2, 3, 7, -1, -2, -3, 255, 256, 4095, 4096, WINDOW - 1, WINDOW, WINDOW + 1),
    *(KEYS_MAX, KEYS_MAX + 1, PARTS_MAX, 1 << 30, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40),
    *((1 << 62) - 1, 1 << 62, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
    *(-(1 << 31), -(1 << 62), -(1 << 63)),
]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf]
MANY_OFTEN = 0.03  # share of messages that get many parts, if they have any
MANY = [2, 17, 300, PARTS_ASKED_MAX, PARTS_ASKED_MAX, PARTS_ASKED_MAX + 1, PARTS_MAX]
# (first, last) of the n-th part of so many rows
WAYS = [
    lambda n, rows: (0, rows),  # equal
    lambda n, rows: (n, n),  # empty
    lambda n, rows: (n, n + 1),
    lambda n, rows: (rows - 1 - n, rows - n),  # the last one first
    lambda n, rows: (n // 2, n // 2 + 1) if n % 2 else (rows - 1 - n // 2, rows - n // 2),
    lambda n, rows: (n, rows),  # each within the one before
]
LENGTHS = [0, 1, 2, 3, 17, 300, 5000, PARTS_MAX, PARTS_MAX + 1, 200_000]


class Mutator:
    """Makes headers of lawful messages and examples, most of them with a few other fields.

    ints, texts: values that were seen in lawful traffic: incarnations, clocks, names
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.sources: list[list[object]] = [
            msgspec.msgpack.decode(msgspec.msgpack.encode(each)) for each in EXAMPLES
        ]
        self._by_kind: dict[str, list[list[object]]] = {}
        self.ints: list[int] = [0, 1]
        self.texts: list[str] = [*("", "scheduler", "server-0", "worker-0", "w"), "x" * 2000]
        for source in self.sources:
            self._file(source)

    def learn(self, message: Message) -> None:
        """Take a message of lawful traffic as a source, and what it names."""
        source = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
        self.sources.append(source)
        self._file(source)
        self._note(source)
        del self.ints[2:-400], self.texts[6:-100]

    def _file(self, source: list[object]) -> None:
        known = self._by_kind.setdefault(str(source[0]), [])
        known.append(source)
        del known[:-24]

    def _note(self, value: object) -> None:
        if isinstance(value, list):
            for each in value:
                self._note(each)
        elif isinstance(value, bool):
            return
        elif isinstance(value, int) and value not in self.ints:
            self.ints.append(value)
        elif isinstance(value, str) and value not in self.texts:
            self.texts.append(value)

    def header(self, message: Message | None = None) -> bytes:
        """The header of this message with a few changed fields, or of one of any kind."""
        random = self.random
        if message is not None:
            source = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
        else:
            source = random.choice(self._by_kind[random.choice(list(self._by_kind))])
        kind, fields = source[0], source
        if random.random() < MANY_OFTEN:
            fields = self.many(fields)
        for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 6))):
            fields = self._mutated(fields)
        fields = [kind, *fields[1:]] if isinstance(fields, list) else [kind]
        header = msgspec.msgpack.encode(fields)
        if random.random() < 0.02:
            header = bytes(b ^ (random.random() < 0.02) * random.randrange(256) for b in header)
        return header if len(header) <= HEADER_MAX else msgspec.msgpack.encode(source)

    def many(self, fields: list[object]) -> list[object]:
        """The message with many parts where it has one: equal, empty or in the worst order."""
        random = self.random
        at = [n for n, each in enumerate(fields) if _is_parts(each)]
        count, way = random.choice(MANY), random.choice(WAYS)
        for number in at if random.random() < 0.5 else at[:1]:
            table, start, stop, keys, *slots = fields[number][0]
            keys = random.choice((keys, keys, 0, 1, -1, SAME))
            rows = [way(each % max(1, stop - start), stop - start) for each in range(count)]
            parts = [[table, start + first, start + last, keys, *slots] for first, last in rows]
            fields = [*fields[:number], parts, *fields[number + 1 :]]
        if at and fields[0] == "Replicate":  # which says something of each part
            versions = [fields[7][0] + each for each in range(count)] if fields[7] else []
            fields = [*fields[:7], versions, [None] * count, *fields[9:]]
        return fields

    def _mutated(self, value: object) -> object:
        """The value with one place in it changed."""
        random = self.random
        if isinstance(value, list) and value:
            if random.random() < 0.15:
                return self._relisted(value)
            at = random.randrange(len(value))
            return [*value[:at], self._mutated(value[at]), *value[at + 1 :]]
        if random.random() < 0.04:  # of another type
            return random.choice([None, True, "", [], 1.5, -1, {}, b"x", [[]], "\u2028\n"])
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            near = min(max(value + random.choice((-1, 1)), -(1 << 63)), (1 << 64) - 1)
            return random.choice((random.choice(INTS), random.choice(self.ints), near))
        if isinstance(value, float) or value is None:
            return random.choice(FLOATS)
        if isinstance(value, str):
            return random.choice(self.texts)
        return [value] * random.choice((0, 2))

    def _relisted(self, value: list[object]) -> list[object]:
        random = self.random
        way = random.randrange(5)
        if way == 0:
            return []
        if way == 1:
            length = random.choice(LENGTHS if random.random() < 0.02 else LENGTHS[:5])
            return [value[-1]] * length
        if way == 2:
            return value[:-1]
        if way == 3:
            return [*value, random.choice(value)]
        return random.sample(value, len(value))


def _is_parts(value: object) -> bool:
    """Whether this is a list of parts: [table, start, stop, keys, slots] each."""
    if not isinstance(value, list) or not value:
        return False
    first = value[0]
    return isinstance(first, list) and len(first) == 5 and all(type(n) is int for n in first)
