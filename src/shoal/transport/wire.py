"""Message <-> frame.

    offset  size  what
    0       4     magic "SHOL"
    4       1     protocol version
    5       1     kind, see below
    6       2     zero
    8       4     header bytes, little-endian
    12      8     payload bytes
    20      ...   header: a msgpack array, the message's class name first
    ...     ...   payload: the parts that the message announces, one after the other

    0 FRAME   as above
    1 SHARED  the payload comes through shared memory: PUTs follow
    2 PUT     no header; so many payload bytes have been put there (`transport.shared`)
    3 TAKEN   no header; so many have been taken out again

The payload is never copied into the frame: it leaves from the buffers that were lent, and arrives
in the sink that `Machine.arriving` names.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from shoal.errors import BadLength, BadMagic, BadMessage, BadVersion, ShoalError
from shoal.protocol.messages import PROTOCOL_VERSION, Message

MAGIC = b"SHOL"
PREFIX = Struct("<4sBB2xIQ")
FRAME, SHARED, PUT, TAKEN = range(4)
HEADER_MAX = 4 << 20
PAYLOAD_MAX = 1 << 40

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message, payload_bytes: int = 0, kind: int = FRAME) -> bytes:
    """Prefix and header of a message; its payload follows from its own buffers."""
    header = _encoder.encode(message)
    return PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind, len(header), payload_bytes) + header


def signal(kind: int, count: int) -> bytes:
    """A PUT or TAKEN of `count` bytes."""
    return PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind, 0, count)


def read_prefix(data: memoryview | bytes, start: int = 0) -> tuple[int, int, int]:
    """(kind, header bytes, payload bytes) from the PREFIX.size bytes of the frame at `start`."""
    magic, version, kind, header_bytes, payload_bytes = PREFIX.unpack_from(data, start)
    if magic != MAGIC:
        raise BadMagic(f"a frame begins with {magic!r}, not {MAGIC!r}: is the other side Shoal?")
    if version != PROTOCOL_VERSION:
        raise BadVersion(f"protocol version {version}; this side speaks {PROTOCOL_VERSION}")
    if header_bytes > HEADER_MAX or payload_bytes > PAYLOAD_MAX:
        raise BadLength(f"a header of {header_bytes} bytes and a payload of {payload_bytes}")
    if kind > TAKEN or (kind >= PUT and header_bytes):
        raise BadMessage(f"a frame of kind {kind} with a header of {header_bytes} bytes")
    return kind, header_bytes, payload_bytes


def decode(header: memoryview | bytes) -> Message:
    """The message in a header. Every malformed one is a BadMessage; nothing is executed."""
    try:
        message: Message = _decoder.decode(header)
    except (msgspec.MsgspecError, ShoalError, ValueError, RecursionError) as error:
        raise BadMessage(f"not a message: {error}") from None
    return message
