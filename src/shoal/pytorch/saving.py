"""A whole model in a folder: its parameters and buffers, and the rows that servers have.

model.safetensors            the module's own state_dict
NAME.00000.safetensors ...   of the embedding NAME: `keys` (int64 bits) and `rows`, in pieces
model.json                   what there is; written last, so that a folder with it is complete
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as as_bytes

from shoal.errors import DataCorrupt, DataMissing, InvalidValue
from shoal.pytorch.embedding import Embedding
from shoal.storage.files import make_folder, naming, read_whole, write_whole

MANIFEST, DENSE = "model.json", "model.safetensors"
MANIFEST_BYTES_MAX = 64 << 20
PUSH_ROWS = 1 << 16


class SavedRows(msgspec.Struct, frozen=True):
    """The files of one embedding.

    Attributes:
        dim: elements of a row.
        rows: number of rows in all files.
        files: their names in the folder.
    """

    dim: int
    rows: int
    files: list[str]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a folder has.

    Attributes:
        format: version of this layout.
        embeddings: by the module's name in the model.
    """

    format: int
    embeddings: dict[str, SavedRows]


def save(model: torch.nn.Module, folder: str | Path) -> Path:
    """Save all of a model, also the rows of `shoal.nn.Embedding`s. One worker calls it.

    Rows are those that were ever used; all others begin at their initial values again. Pieces are
    pulled while other workers go on: call it after a barrier for rows of one moment. The rows'
    optimizer state is not saved; that is in checkpoints (`--checkpoint-every`).

    Args:
        model: a module with or without embeddings.
        folder: where to; it is made if it does not exist. What is there of another model is
            replaced, and lost if the writing stops half-way: keep several in folders of their own.

    Returns:
        The folder.

    Raises:
        InvalidValue: the folder cannot be written.

    Example:
        >>> import shoal, tempfile, torch
        >>> context = shoal.init()
        >>> model = torch.nn.Sequential(shoal.nn.Embedding(None, 2, table="docs/saved"))
        >>> before = model(torch.tensor([3, 5])).detach()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = shoal.save(model, folder)
        ...     shoal.load(model, folder)
        >>> torch.equal(model(torch.tensor([3, 5])), before)
        True
    """
    path = Path(folder)
    try:
        make_folder(path)
        before = _files_of(path)
        (path / MANIFEST).unlink(missing_ok=True)  # until all of the new model is there
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "this state_dict has no rows")
            state = {n: each.detach().clone() for n, each in model.state_dict().items()}
        write_whole(path / DENSE, as_bytes(state))
        found = {name: _save_rows(each, name, path) for name, each in _embeddings(model).items()}
        write_whole(path / MANIFEST, msgspec.json.encode(Manifest(1, found)))
        for name in before - _files_of(path):
            (path / name).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidValue(f"{path} cannot be written: {error}") from None
    return path


def load(model: torch.nn.Module, folder: str | Path) -> None:
    """Load what `save` has saved. All workers of the run call it; it may be another run.

    Parameters and buffers are loaded on every worker; the worker of the lowest rank writes the rows
    to the servers, past their optimizers, and the others wait. Load before `shoal.Optimizer` wraps
    the model, or before its `load_state_dict`.

    Args:
        model: a module of the same structure, whose embeddings may be in other tables.
        folder: of `save`.

    Raises:
        DataMissing: the folder has no model.
        DataCorrupt: a file is not as it was written.
        InvalidValue: it is another model. Nothing is changed.

    Example:
        >>> import shoal, tempfile, torch
        >>> context = shoal.init()
        >>> one, two = (shoal.nn.Embedding(None, 2, table=f"docs/loaded{i}") for i in range(2))
        >>> rows = one(torch.tensor([3, 5]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = shoal.save(one, folder)
        ...     shoal.load(two, folder)
        >>> torch.equal(two(torch.tensor([3, 5])), rows)
        True
    """
    path = Path(folder)
    told = _manifest(path)
    modules = _embeddings(model)
    for name in sorted(told.embeddings.keys() ^ modules.keys()):
        where = "the model" if name in modules else str(path)
        raise InvalidValue(f"{path} is of another model: only {where} has an embedding {name!r}")
    for name, module in modules.items():
        if told.embeddings[name].dim != module.embedding_dim:
            raise InvalidValue(
                f"{path} is of another model: rows of {name!r} have {told.embeddings[name].dim} "
                f"elements there, and {module.embedding_dim} here"
            )
    state = _read(path / DENSE)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InvalidValue(f"{path} is of another model: {error}") from None
    for name, module in modules.items():
        client = module.client
        if client.rank == client.first_rank:
            for file in told.embeddings[name].files:
                _push_rows(module, path / file)
        client.barrier(f"{module.spec.name} loaded")


def _embeddings(model: torch.nn.Module) -> dict[str, Embedding]:
    """By name in the model; "rows" for the model itself."""
    return {
        name or "rows": module
        for name, module in model.named_modules()
        if isinstance(module, Embedding)
    }


def _save_rows(module: Embedding, name: str, folder: Path) -> SavedRows:
    files: list[str] = []
    count = 0
    for keys, rows in module.client.scan(module.spec.name):
        files.append(f"{name}.{len(files):05}.safetensors")
        write_whole(folder / files[-1], as_bytes({"keys": keys, "rows": rows}))
        count += len(keys)
    return SavedRows(module.embedding_dim, count, files)


def _push_rows(module: Embedding, path: Path) -> None:
    tensors = _read(path)
    keys, rows = tensors.get("keys"), tensors.get("rows")
    if keys is None or rows is None or len(keys) != len(rows):
        raise DataCorrupt(f"{path}: it has no keys and rows")
    rows = rows.to(module.client.pull(module.spec.name, keys[:1]).wait().dtype)
    for some, values in zip(keys.split(PUSH_ROWS), rows.split(PUSH_ROWS), strict=True):
        named = some.numpy().view("uint64")
        module.client.push(module.spec.name, values.contiguous(), named, assign=True).wait()


def _files_of(folder: Path) -> set[str]:
    """The files of rows that a folder's model has, if it has one."""
    try:
        told = _manifest(folder)
    except (DataMissing, DataCorrupt):
        return set()
    return {
        file for each in told.embeddings.values() for file in each.files if Path(file).name == file
    }


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.exists():
        raise DataMissing(f"{folder} has no model that shoal.save has finished")
    with naming(path):
        told = msgspec.json.decode(read_whole(path, MANIFEST_BYTES_MAX), type=Manifest)
    if told.format != 1:
        raise DataCorrupt(f"{path}: format {told.format} is of another version of Shoal")
    return told


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise DataMissing(f"{path} is missing") from None
    except (OSError, SafetensorError) as error:
        raise DataCorrupt(f"{path}: {error}") from None
