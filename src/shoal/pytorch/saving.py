"""A whole model in a folder: its parameters and buffers, and the rows that servers have.

    NAME.00000.safetensors ...   of the embedding NAME: `keys` (int64 bits) and `rows`, in pieces
    model.safetensors            the module's own state_dict, and which pieces there are; written
                                 last, so that a folder with it is complete

All have checksums (`storage.verified`).
"""

from __future__ import annotations

import warnings
from pathlib import Path

import msgspec
import torch

from shoal.errors import DataCorrupt, DataMissing, InvalidValue, UnknownFormat
from shoal.pytorch.embedding import PUSH_ROWS, Embedding
from shoal.storage.files import damaged, make_folder
from shoal.storage.verified import read_told, read_verified, write_verified

MODEL = "model.safetensors"
EMBEDDINGS = "embeddings"  # the key in the metadata of that file


class SavedRows(msgspec.Struct, frozen=True):
    """The files of one embedding.

    Attributes:
        dim: the number of elements of a row.
        rows: the number of rows in all files.
        files: the names of the files in the folder.
    """

    dim: int
    rows: int
    files: list[str]


Found = dict[str, SavedRows]  # by the module's name in the model


def save(model: torch.nn.Module, folder: str | Path) -> Path:
    """Save all of a model, including the rows of each `shoal.nn.Embedding`.

    One worker calls it. It saves the rows that the servers have; all others begin at their initial
    values again. Pieces are pulled while other workers go on: call it after a barrier for rows of
    one moment. The rows' optimizer state is not saved; it is in checkpoints (`--checkpoint-every`).

    Args:
        model: a module with or without embeddings.
        folder: the folder to write to; it is made if it does not exist. A model that it has is
            replaced, and lost if the writing stops half-way: keep several in separate folders.

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
        (path / MODEL).unlink(missing_ok=True)  # until all of the new model is there
        state = {name: each.detach().clone() for name, each in _state_of(model).items()}
        found = {name: _save_rows(each, name, path) for name, each in _embeddings(model).items()}
        write_verified(path / MODEL, state, {EMBEDDINGS: msgspec.json.encode(found).decode()})
        for name in before - _files_of(path):
            (path / name).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidValue(f"{path} cannot be written: {error}") from None
    return path


def load(model: torch.nn.Module, folder: str | Path) -> None:
    """Load a model that `save` has saved, in this run or in another one.

    All workers of the run call it. Parameters and buffers are loaded on every worker; the worker of
    the lowest rank writes the rows to the servers, past their optimizers, and the others wait. Load
    before `shoal.Optimizer` wraps the model, or before its `load_state_dict`.

    Args:
        model: a module of the same structure, whose embeddings may be in other tables.
        folder: the folder that `save` has written.

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
    told = _told(path)
    modules = _embeddings(model)
    for name in sorted(told.keys() ^ modules.keys()):
        where = "the model" if name in modules else str(path)
        raise InvalidValue(f"{path} is of another model: only {where} has an embedding {name!r}")
    for name, module in modules.items():
        if told[name].dim != module.embedding_dim:
            raise InvalidValue(
                f"{path} is of another model: rows of {name!r} have {told[name].dim} "
                f"elements there, and {module.embedding_dim} here"
            )
    state, _ = read_verified(path / MODEL)
    before = {n: each.detach().clone() for n, each in _state_of(model).items() if _has_values(each)}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # after it has copied the tensors that fit
        with torch.no_grad():
            for name in before:
                _state_of(model)[name].copy_(before[name])
        raise InvalidValue(f"{path} is of another model: {error}") from None
    for name, module in modules.items():
        client = module.client
        if client.rank == client.first_rank:
            for file in told[name].files:
                _push_rows(module, path / file)
        client.barrier(f"{module.spec.name} loaded")


def _state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the state dict of a model, whose rows on servers are saved apart."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this state_dict has no rows")
        found: dict[str, torch.Tensor] = model.state_dict()
    return found


def _has_values(each: object) -> bool:
    """Return whether an entry of a state dict has values: those of lazy modules have none yet."""
    return isinstance(each, torch.Tensor) and not torch.nn.parameter.is_lazy(each)


def _embeddings(model: torch.nn.Module) -> dict[str, Embedding]:
    """Return the embeddings by their name in the model; "rows" for the model itself."""
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
        write_verified(folder / files[-1], {"keys": keys, "rows": rows}, {})
        count += len(keys)
    return SavedRows(module.embedding_dim, count, files)


def _push_rows(module: Embedding, path: Path) -> None:
    tensors, _ = read_verified(path)
    keys, rows = tensors.get("keys"), tensors.get("rows")
    if keys is None or rows is None or len(keys) != len(rows):
        raise damaged(path, "it has no keys and rows")
    rows = rows.to(module.client.pull(module.spec.name, keys[:1]).wait().dtype)
    pieces = torch.split(keys, PUSH_ROWS), torch.split(rows, PUSH_ROWS)
    for some, values in zip(*pieces, strict=True):
        named = some.numpy().view("uint64")
        module.client.push(module.spec.name, values.contiguous(), named, assign=True).wait()


def _files_of(folder: Path) -> set[str]:
    """Return the names of the row files of the model in a folder; none if it has no such model."""
    try:
        return {file for each in _told(folder).values() for file in each.files}
    except (DataMissing, DataCorrupt, UnknownFormat):
        return set()


def _told(folder: Path) -> Found:
    """Return the embeddings of the model in a folder, from the metadata of its file."""
    path = folder / MODEL
    if not path.exists():
        raise DataMissing(f"{folder} has no model that shoal.save has finished")
    try:
        found = msgspec.json.decode(read_told(path).get(EMBEDDINGS, ""), type=Found)
    except ValueError as error:
        raise damaged(path, f"it is of no shoal.save ({error})") from None
    if any(Path(file).name != file for each in found.values() for file in each.files):
        raise damaged(path, "it names files of other folders")
    return found
