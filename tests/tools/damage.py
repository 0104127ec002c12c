"""Ways to damage a file, drawn from a seed.

A way that changes bytes is what disks and transfers do. `rewritten` changes what the file says and
leaves its checksums right, as only a writer can: readers have to look at values all the same.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import tomli_w
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal.storage.journal import Journal
from shoal.storage.verified import write_verified

NUMBERS = (-1, 0, 1 << 31, (1 << 63) - 1, (1 << 64) - 1)
LEAVES = (*NUMBERS, -(1 << 63), 1 << 40, 1e308, True, None, "", "x", [], {}, [0], ["x", 1])
HEADER_BYTES = 128  # numpy's header has as many
DTYPES = (torch.int64, torch.float32, torch.float64, torch.uint8, torch.bool, torch.bfloat16)
Way = Callable[[Path, Random], None]


# ---------------------------------------------------------------------------- the whole file


def truncated(path: Path, draw: Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data) or 1)])


def emptied(path: Path, draw: Random) -> None:
    path.write_bytes(b"")


def missing(path: Path, draw: Random) -> None:
    path.unlink()


def folder_instead(path: Path, draw: Random) -> None:
    path.unlink()
    path.mkdir()


def unreadable(path: Path, draw: Random) -> None:
    """It can be opened and not read; or it cannot be opened."""
    path.unlink()
    path.symlink_to("/proc/self/mem" if draw.random() < 0.5 else path)


def pipe_instead(path: Path, draw: Random) -> None:
    """Nobody writes to it, so that plain opening never returns."""
    path.unlink()
    os.mkfifo(path)


def endless(path: Path, draw: Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def of_another_checkpoint(path: Path, draw: Random) -> None:
    """As it was written, for another clock: copied, or its folder renamed."""
    checkpoints = path.parent.parent
    others = [each for each in checkpoints.glob(f"[0-9]*/{path.name}") if each != path]
    if path.parent.name.isdecimal() and others:
        data = draw.choice(sorted(others)).read_bytes()
        path.unlink()
        path.write_bytes(data)


# ---------------------------------------------------------------------------- bytes


def flipped_bits(path: Path, draw: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 4)):
        if data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def changed_header(path: Path, draw: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 9)):
        if data:
            data[draw.randrange(min(len(data), HEADER_BYTES))] = draw.randrange(256)
    path.write_bytes(data)


def changed_word(path: Path, draw: Random) -> None:
    """Eight bytes, as a number of either byte order."""
    data = bytearray(path.read_bytes())
    if len(data) >= 8:
        at = draw.randrange(len(data) // 8) * 8
        order = draw.choice(("little", "big"))
        data[at : at + 8] = (draw.choice(NUMBERS) % (1 << 64)).to_bytes(8, order)
    path.write_bytes(data)


def changed_number(path: Path, draw: Random) -> None:
    """A decimal number in its text or header."""
    data = path.read_bytes()
    found = list(re.finditer(rb"-?[0-9]+", data[: 1 << 16]))
    if found:
        match = draw.choice(found)
        data = data[: match.start()] + b"%d" % draw.choice(NUMBERS) + data[match.end() :]
    path.write_bytes(data)


def moved_block(path: Path, draw: Random) -> None:
    """A block is swapped with another, written twice, left out or zeroed."""
    data = path.read_bytes()
    size = max(1, len(data) // draw.randrange(2, 40))
    blocks = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    one, other = draw.randrange(len(blocks)), draw.randrange(len(blocks))
    what = draw.randrange(4)
    if what == 0:
        blocks[one], blocks[other] = blocks[other], blocks[one]
    elif what == 1:
        blocks.insert(one, blocks[other])
    elif what == 2:
        del blocks[one]
    else:
        blocks[one] = bytes(len(blocks[one]))
    path.write_bytes(b"".join(blocks))


# ---------------------------------------------------------------------------- what it says


def rewritten(path: Path, draw: Random) -> None:
    """One value is another, and checksums are right."""
    writer = REWRITERS.get(path.suffix) or REWRITERS.get(path.name)
    if writer is None:
        changed_number(path, draw)
    else:
        writer(path, draw)


def changed(value: Any, draw: Random) -> Any:
    """The same with one of its leaves, or an entry of one of its containers, another."""
    if isinstance(value, dict) and value:
        key = draw.choice(sorted(value, key=str))
        if draw.random() < 0.15:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: changed(value[key], draw)}
    if isinstance(value, list | tuple) and value:
        at = draw.randrange(len(value))
        if draw.random() < 0.15:
            return [*value[:at], *value[at + 1 :]]
        return [*value[:at], changed(value[at], draw), *value[at + 1 :]]
    return draw.choice(LEAVES)


def _tensors(path: Path, draw: Random) -> None:
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in list(file.keys())}
        told = dict(file.metadata() or {})
    if draw.random() < 0.2 and told:
        name = draw.choice(sorted(told))
        try:
            told[name] = json.dumps(changed(json.loads(told[name]), draw))
        except ValueError:
            told[name] = str(draw.choice(LEAVES))
    elif tensors:
        name = draw.choice(sorted(tensors))
        new = _changed_tensor(tensors.pop(name), draw)
        tensors |= {} if new is None else {name: new}
    path.unlink()
    if "crc32" in told:
        write_verified(path, tensors, told)
    else:
        save_file(tensors, path, told or None)


def _changed_tensor(tensor: Tensor, draw: Random) -> Tensor | None:
    what = draw.randrange(6)
    if what == 0:
        return None
    if what == 1:
        return tensor.flatten()[: draw.randrange(tensor.numel() + 1)].clone()
    if what == 2:
        return torch.cat([tensor, tensor]) if tensor.dim() else tensor.reshape(1, 1)
    if what == 3:
        return tensor.to(draw.choice(DTYPES))
    flat = tensor.flatten().clone()
    for _ in range(draw.randrange(1, 4) if flat.numel() else 0):
        if flat.is_floating_point():
            value: float = draw.choice([float("nan"), float("inf"), -1.0, 0.0, 1e38])
        else:
            limits = torch.iinfo(flat.dtype) if flat.dtype != torch.bool else None
            low, high = (limits.min, limits.max) if limits else (0, 1)
            value = min(max(draw.choice([*NUMBERS[:4], low, 1 << 62, 1 << 33]), low), high)
        flat[draw.randrange(flat.numel())] = value
    return flat.reshape(tensor.shape)


def _arrays(path: Path, draw: Random) -> None:
    with np.load(path) as saved:
        arrays = {name: torch.from_numpy(saved[name]) for name in saved.files}
    name = draw.choice(sorted(arrays))
    new = _changed_tensor(arrays.pop(name), draw)
    arrays |= {} if new is None or new.dtype == torch.bfloat16 else {name: new}
    with path.open("wb") as file:
        np.savez(file, **{name: each.numpy() for name, each in arrays.items()})


def _lines(path: Path, draw: Random) -> None:
    lines = path.read_bytes().splitlines()
    at = draw.randrange(len(lines))
    lines[at] = json.dumps(changed(json.loads(lines[at]), draw)).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")


def _json(path: Path, draw: Random) -> None:
    path.write_text(json.dumps(changed(json.loads(path.read_text()), draw)))


def _toml(path: Path, draw: Random) -> None:
    try:
        path.write_text(tomli_w.dumps(changed(tomllib.loads(path.read_text()), draw)))
    except TypeError:  # TOML has no null
        changed_number(path, draw)


def _journal(path: Path, draw: Random) -> None:
    journal = Journal(path)
    record = msgspec.msgpack.decode(journal.read() or b"")
    if draw.random() < 0.1:
        journal.write(draw.randbytes(draw.randrange(40)))
        return
    journal.write(msgspec.msgpack.encode(changed(record, draw)))


REWRITERS: dict[str, Way] = {
    ".safetensors": _tensors,
    ".npz": _arrays,
    ".jsonl": _lines,
    ".json": _json,
    ".error": _json,
    ".toml": _toml,
    "scheduler.state": _journal,
}
WAYS: tuple[Way, ...] = (
    truncated,
    truncated,
    emptied,
    missing,
    of_another_checkpoint,
    folder_instead,
    unreadable,
    pipe_instead,
    endless,
    flipped_bits,
    flipped_bits,
    changed_header,
    changed_word,
    changed_number,
    changed_number,
    moved_block,
    moved_block,
    rewritten,
    rewritten,
    rewritten,
    rewritten,
)


def damage(path: Path, draw: Random) -> str:
    """Damage a file in a way that is drawn; returns the way's name."""
    way = draw.choice(WAYS)
    before = path.read_bytes()
    path.unlink()  # it may be linked to the file that is damaged next
    path.write_bytes(before)
    way(path, draw)
    return way.__name__
