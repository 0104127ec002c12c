"""Wire format: messages as frames.

    offset  size  what
    0       4     magic "SHOL"
    4       1     protocol version
    5       1     kind, see below
    6       2     padding: zero bytes between header and payload, little-endian
    8       4     header bytes
    12      8     payload bytes
    20      ...   header: a msgpack array, the message's class name first
    ...     ...   padding, so that a large payload begins on a cache line's edge
    ...     ...   payload: the parts that the message announces, one after the other

    0 FRAME   as above
    1 SHARED  the payload comes through shared memory: PUTs follow
    2 PUT     no header; so many payload bytes have been put there (`transport.shared`)
    3 TAKEN   no header; so many have been taken out again
    4 LENT    so many payload bytes lie in the sender's arena (`transport.arena`), at the offset
              that the header is: 8 bytes, little-endian
    5 READ    no header; so many have been read there, or are borrowed
    6 FREE    no header; so many, of those that were lent first, are in use no more

The payload is never copied into the frame: it is sent from the caller's buffers and received into
the sink that `Machine.arriving` returns.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from struct import Struct
from typing import Any, Literal

import msgspec

from shoal.errors import (
    BadLength,
    BadMagic,
    BadMessage,
    BadVersion,
    InvariantBroken,
    ShoalError,
)
from shoal.protocol.messages import MESSAGES
from shoal.protocol.messages.base import PROTOCOL_VERSION, Message
from shoal.protocol.messages.handshake import Challenge, Denied, Hello, Welcome

MAGIC = b"SHOL"
PREFIX = Struct("<4sBBHIQ")
FRAME, SHARED, PUT, TAKEN, LENT, READ, FREE = range(7)
LINE_BYTES = 64  # a copy to the middle of a cache line can be four times slower
OFFSET_BYTES = 8
PADDED_BYTES = 4 << 10  # payloads from here on
HEADER_MAX = 4 << 20
PAYLOAD_MAX = 1 << 40

_encoder = msgspec.msgpack.Encoder()
_any_message: Any = reduce(or_, MESSAGES)
_decoder = msgspec.msgpack.Decoder(_any_message)
_decoders = {
    "caller": msgspec.msgpack.Decoder(Hello),
    "listener": msgspec.msgpack.Decoder(Challenge | Welcome | Denied),
}


def encode(message: Message, payload_bytes: int = 0, kind: int = FRAME) -> bytes:
    """Return the prefix and the header of a message; the payload follows from its own buffers.

    Raises:
        InvariantBroken: readers would refuse the header; what senders say has bounds below that.
    """
    header = _encoder.encode(message)
    size = len(header)
    if size > HEADER_MAX:
        raise InvariantBroken(
            f"a {type(message).__name__} of {size} bytes, where readers take {HEADER_MAX}"
        )
    if payload_bytes < PADDED_BYTES:
        return PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind, 0, size, payload_bytes) + header
    padding = -(PREFIX.size + size) % LINE_BYTES
    prefix = PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind, padding, size, payload_bytes)
    return prefix + header + bytes(padding)


def signal(kind: int, count: int) -> bytes:
    """Return a PUT, TAKEN, READ or FREE signal of `count` bytes."""
    return PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind, 0, 0, count)


def lend(offset: int, count: int) -> bytes:
    """Return a LENT signal of `count` bytes at an offset."""
    prefix = PREFIX.pack(MAGIC, PROTOCOL_VERSION, LENT, 0, OFFSET_BYTES, count)
    return prefix + offset.to_bytes(OFFSET_BYTES, "little")


def other_version(them: str, version: int, us: str) -> str:
    """Return the text for the user of two nodes with different protocol versions."""
    older = them if version < PROTOCOL_VERSION else us
    return (
        f"{them} speaks protocol version {version}, and {us} {PROTOCOL_VERSION}: install a newer "
        f"release of shoal for {older}, or the same one for both"
    )


def read_prefix(data: memoryview | bytes, start: int = 0) -> tuple[int, int, int, int]:
    """Return (kind, header, padding, payload bytes) from the prefix of the frame at `start`."""
    magic, version, kind, padding, header_bytes, payload_bytes = PREFIX.unpack_from(data, start)
    if magic != MAGIC:
        raise BadMagic(f"a frame begins with {magic!r}, not {MAGIC!r}: is the peer a Shoal node?")
    if version != PROTOCOL_VERSION:
        raise BadVersion(other_version("the peer", version, "this node"))
    if header_bytes > HEADER_MAX or payload_bytes > PAYLOAD_MAX or padding >= LINE_BYTES:
        raise BadLength(
            f"a header of {header_bytes} bytes, padding of {padding} and a payload of "
            f"{payload_bytes}"
        )
    if kind >= PUT and (kind > FREE or header_bytes != (OFFSET_BYTES if kind == LENT else 0)):
        raise BadMessage(f"a frame of kind {kind} with a header of {header_bytes} bytes")
    return kind, header_bytes, padding, payload_bytes


def decode_greeting(header: memoryview | bytes, sender: Literal["caller", "listener"]) -> Message:
    """Decode a message of the handshake: a peer that has proved nothing may send no other."""
    return decode(header, _decoders[sender])


def decode(header: memoryview | bytes, decoder: msgspec.msgpack.Decoder[Any] = _decoder) -> Message:
    """Decode the message in a header, without executing anything.

    Raises:
        BadMessage: the message is malformed.
    """
    try:
        message: Message = decoder.decode(header)
    except (msgspec.MsgspecError, ShoalError, ValueError, RecursionError) as error:
        raise BadMessage(f"not a message: {error}") from None
    return message


def message_of(frame: memoryview | bytes) -> Message:
    """Decode the message at the beginning of a frame, from its prefix and header."""
    _, header_bytes, _, _ = read_prefix(frame)
    return decode(frame[PREFIX.size : PREFIX.size + header_bytes])
