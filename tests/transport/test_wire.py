"""Frames: every message round-trips, and whatever else comes raises a typed error and no other."""

import pickle
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import (
    BadLength,
    BadMagic,
    BadMessage,
    BadVersion,
    InvariantBroken,
    WireError,
)
from shoal.protocol.messages import MESSAGES
from shoal.protocol.messages.base import PROTOCOL_VERSION
from shoal.protocol.messages.requests import Nudge, Request
from shoal.testing.messages import EXAMPLES
from shoal.transport.wire import (
    HEADER_MAX,
    LINE_BYTES,
    PADDED_BYTES,
    PAYLOAD_MAX,
    PREFIX,
    decode,
    encode,
    message_of,
    read_prefix,
)
from tests.transport.rigs import prefix


def read(frame):
    """What a connection does with a frame."""
    _, header_bytes, _, payload_bytes = read_prefix(frame)
    return decode(memoryview(frame)[PREFIX.size : PREFIX.size + header_bytes]), payload_bytes


def header(*fields):
    return msgspec.msgpack.encode(fields)


def test_every_message_has_an_example():
    assert {type(example) for example in EXAMPLES} == set(MESSAGES)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_message_round_trips(message):
    back, payload_bytes = read(encode(message, 12345))
    assert back == message
    assert type(back) is type(message)
    assert payload_bytes == 12345


def test_the_frame_layout_is_the_documented_one():
    frame = encode(Nudge("hi"), 258)
    body = b"\x92\xa5Nudge\xa2hi"
    version = PROTOCOL_VERSION.to_bytes(4, "little")
    assert frame == b"SHOL" + version + b"\x0a\0\0\0" + b"\x02\x01" + bytes(6) + body
    assert PREFIX.size == 20


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_large_payload_is_aligned(message):
    frame = encode(message, PADDED_BYTES)
    _, header_bytes, padding, _ = read_prefix(frame)
    assert len(frame) % LINE_BYTES == 0
    assert len(frame) == PREFIX.size + header_bytes + padding
    assert message_of(frame) == message


def test_a_prefix_is_read_at_any_offset():
    assert read_prefix(b"xyz" + prefix(header=5, payload=6), 3) == (0, 5, 0, 6)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (prefix(magic=b"HTTP"), BadMagic, "HTTP"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", BadMagic, "Shoal"),
        (prefix(version=PROTOCOL_VERSION + 1), BadVersion, str(PROTOCOL_VERSION + 1)),
        (prefix(version=0), BadVersion, "install a newer release of shoal for the peer"),
        (prefix(header=HEADER_MAX + 1), BadLength, str(HEADER_MAX + 1)),
        (prefix(header=0xFFFFFFFF), BadLength, "4294967295"),
        (prefix(payload=PAYLOAD_MAX + 1), BadLength, str(PAYLOAD_MAX + 1)),
        (prefix(payload=(1 << 64) - 1), BadLength, "18446744073709551615"),
        (prefix(padding=64), BadLength, "padding of 64"),
        (prefix(kind=4), BadMessage, "kind 4"),
        (prefix(kind=2, header=1), BadMessage, "kind 2"),
        (prefix(kind=3, header=1), BadMessage, "kind 3"),
    ],
)
def test_a_bad_prefix_raises_a_typed_error(data, error, says):
    with pytest.raises(error, match=says):
        read_prefix(data)


def test_the_largest_lengths_are_accepted():
    assert read_prefix(prefix(header=HEADER_MAX, payload=PAYLOAD_MAX)) == (
        0,
        HEADER_MAX,
        0,
        PAYLOAD_MAX,
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x92",
        header(),
        header("Nudge"),
        header("Nudge", 7),
        header("NoSuchMessage", 1),
        header(["Nudge"], "x"),
        header("Nudge", "x") + b"\x01",
        header("Reply", 1, 2, [0, 0], "no such code"),
        header("Hello", 1, "job", "node", "no such role", 0, b"", b""),
        header("Heartbeat", 1 << 63, 1.5, [0, 0]),
        header("Heartbeat", 1, 1, [0, 0, 0]),
        b"\x92\xa5Nudge\xa1\xff",  # a string that is not UTF-8
        b"\x92\xa5Nudge" + b"\x91" * 100_000,
        b"\x93\xa5Nudge\xa1x" + b"\x91" * 100_000 + b"\x01",  # in a field that is skipped
        b"\xdd\xff\xff\xff\xff",  # an array of four billion
        b"\x92\xa5Nudge\xdb\xff\xff\xff\xff",
        header("Declare", 1, ["t", 0, []]),  # a table without rows
        header("Declare", 1, ["", 1, []]),
        header("Declare", 1, ["t", 1, [], "no such dtype"]),
        header("Declare", 1, ["t", 1, [0]]),
    ],
    ids=repr,
)  # fmt: skip
def test_a_malformed_header_raises_bad_message(data):
    with pytest.raises(BadMessage, match="not a message"):
        decode(data)


def test_fields_of_a_newer_peer_are_ignored():
    assert decode(header("Nudge", "x", "new", 1)) == Nudge("x")
    assert decode(header("Request", [1, 2], 3, 4, 5, 6)) == Request((1, 2), 3, 4, 5, 6)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a header was executed",))


@pytest.mark.parametrize(
    "hidden",
    [
        pickle.dumps(Bomb()),
        msgspec.msgpack.Ext(1, pickle.dumps(Bomb())),
        msgspec.msgpack.Ext(-1, bytes(8)),
        datetime(2020, 1, 1, tzinfo=UTC),
        {"__reduce__": "os.system", "tag": "Bomb"},
        "__import__('os').abort()",
    ],
    ids=lambda hidden: type(hidden).__name__,
)
def test_nothing_is_executed(hidden):
    assert decode(header("Nudge", "x", hidden)) == Nudge("x")  # where it is skipped
    if isinstance(hidden, str):
        assert decode(header("Nudge", hidden)).reason == hidden
        return
    for fields in ((hidden,), ("Nudge", hidden), ("Welcome", "a", [hidden])):
        with pytest.raises(BadMessage):
            decode(header(*fields))


# ---------------------------------------------------------------------------- any bytes


def only_wire_errors(frame):
    try:
        message, payload_bytes = read(frame)
    except WireError:
        return
    assert type(message) in MESSAGES
    assert 0 <= payload_bytes <= PAYLOAD_MAX


@settings(max_examples=500, deadline=None)
@given(st.binary(min_size=PREFIX.size, max_size=200))
def test_random_bytes_raise_only_wire_errors(data):
    only_wire_errors(data)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_random_headers_raise_only_wire_errors(data):
    only_wire_errors(prefix(header=len(data)) + data)


plain = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
    | st.sampled_from(["", "scheduler", "x"]) | st.binary(max_size=5)
)  # fmt: skip
nested = plain | st.lists(plain | st.lists(plain, max_size=8), max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(MESSAGES), st.lists(nested, max_size=12))
def test_wrong_fields_raise_only_wire_errors(kind, fields):
    data = header(kind.__name__, *fields)
    only_wire_errors(prefix(header=len(data)) + data)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(EXAMPLES),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4),
    st.sampled_from(["change", "insert", "delete"]),
)
def test_mutated_frames_raise_only_wire_errors(message, places, how):
    frame = bytearray(encode(message))
    for place, byte in places:
        place = PREFIX.size + place % (len(frame) - PREFIX.size)
        if how == "change":
            frame[place] = byte
        elif how == "insert":
            frame.insert(place, byte)
        elif len(frame) > PREFIX.size + 1:
            del frame[place]
    frame[:20] = prefix(header=len(frame) - PREFIX.size)
    only_wire_errors(bytes(frame))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(EXAMPLES), st.integers(0, PREFIX.size - 1), st.integers(0, 255))
def test_mutated_prefixes_raise_only_wire_errors(message, place, byte):
    frame = bytearray(encode(message))
    frame[place] = byte
    only_wire_errors(bytes(frame))


def test_a_message_that_its_reader_refuses_is_not_made():
    """What members say has bounds below that: the run ends with an error, and does not hang."""
    with pytest.raises(InvariantBroken, match=r"a Nudge of \d+ bytes, where readers"):
        encode(Nudge("x" * HEADER_MAX))
