"""FlatParams: parameters as views of flat buffers, one per dtype and parameter group.

Pulls write into the model, and pushes read from the gradients, without a copy of the model. The
gradients are in memory that servers of this host read in place. Each parameter has a storage of its
own, for its own rows, so that torch saves no others with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.errors import InvalidValue
from shoal.strategies.base import WIRE_TAIL
from shoal.tables.spec import ITEM_SIZES, Span
from shoal.transport.tensors import shared_zeros

if TYPE_CHECKING:
    from shoal.client.client import Client

ALIGN = 16  # elements: every parameter starts at an address aligned for vector instructions
NAMED_MOST = 1 << 12  # parameters of a buffer up to which spans have names: every view has them
DTYPES = {getattr(torch, name): name for name in ITEM_SIZES if "float" in name}
ENCODED_LEAST = 1024  # elements: codecs that are not for a certain parameter leave out smaller ones
FROZEN = ".frozen"  # ends the names of buffers whose parameters are frozen at first

_BASE: Any = torch._C.TensorBase
_Uninitialized: Any = nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
# Descriptors, which C code can apply to many parameters:
_GRAD: Callable[[Tensor], Tensor | None] = _BASE.grad.__get__
_LAYOUT: Callable[[Tensor], torch.layout] = _BASE.layout.__get__


class Place(NamedTuple):
    """The place of a parameter: `rows` of a flat buffer.

    Attributes:
        number: the parameter's number in its buffer.
        value, grad: the rows of the buffer and of its gradients, as the parameter is laid out.
    """

    parameter: nn.Parameter
    buffer: str
    rows: slice
    number: int
    value: Tensor
    grad: Tensor


class FlatParams:
    """Trainable parameters and their gradients as views of flat buffers.

    There is a buffer for each dtype and parameter group. It has the dtype's name for the first
    group, such as "float32", and the group's number behind it for the others, such as "float32.1".

    Args:
        parameters: the parameters or, as torch.optim takes them, groups: dicts with the parameters
            under "params". They are flattened in this order; those without `requires_grad` and
            those without elements are left out.
        frozen: whether parameters without `requires_grad` are flattened as well, in separate
            buffers with names such as "float32.frozen".
        names: the parameters' names, for error messages.

    Attributes:
        values: the (n,) tensor of each buffer, whose pieces are the parameters' `.data`, each
            aligned to 16 elements, in the parameter's own order of dimensions.
        grads: the (n,) tensor of the gradients of each buffer, in the same places.
        wires: the `grads` of each buffer with a few more elements, which travel along.
        places: the place of each parameter, in the order of the buffers.
        groups: the number of the parameter group of each buffer.
        spans: the start of each parameter with its name and shape, by buffer; with the codec
            "exact" for vectors and small parameters.
        shapes: the shape of each parameter, by buffer, its dimensions in the order of memory.
        absent: the numbers of the parameters without a gradient, by buffer; only for buffers that
            have some. `collect` sets it.
        idle: the buffers whose parameters are all frozen.

    Raises:
        InvalidValue: there are no trainable parameters, or one that cannot be flattened: on another
            device than the CPU, of a dtype that is no real floating-point number of 16 to 64 bits,
            in shared memory, with elements that share memory, or not initialized. Nothing has
            changed.

    Example:
        >>> flat = FlatParams(nn.Linear(2, 3).parameters())
        >>> flat.values["float32"].shape, flat.sizes
        (torch.Size([32]), {'float32': 32})
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[Mapping[str, Any]],
        frozen: bool = False,
        names: Mapping[nn.Parameter, str] | None = None,
    ) -> None:
        self.values: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        self.wires: dict[str, Tensor] = {}
        self.places: list[Place] = []
        self.groups: dict[str, int] = {}
        self.spans: dict[str, tuple[Span, ...]] = {}
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
        self.absent: dict[str, tuple[int, ...]] = {}
        self._stale: set[int] | None = set()  # numbers of places with old gradients; None: all
        groups = groups_of(parameters)
        self.names = named(groups, names or {})
        buffers = _buffers(groups, frozen)
        if not any(FROZEN not in buffer for buffer in buffers):
            raise InvalidValue("there are no trainable parameters (requires_grad)")
        for _, members in buffers.values():
            for parameter in members:
                check(parameter, self.names[parameter])
        for buffer, (number, members) in buffers.items():
            self.groups[buffer] = number
            self._flatten(buffer, members)
        self.parameters = [place.parameter for place in self.places]
        self._gradients = [place.grad for place in self.places]
        self.idle = frozenset(buffer for buffer in self.values if FROZEN in buffer)

    def _flatten(self, buffer: str, parameters: list[nn.Parameter]) -> None:
        dtype = parameters[0].dtype
        total = sum(-(-p.numel() // ALIGN) * ALIGN for p in parameters)
        values, wire = _memory(total, dtype), _shared(total + WIRE_TAIL, dtype)
        named = len(parameters) <= NAMED_MOST
        spans, offset = [], 0
        for number, parameter in enumerate(parameters):
            rows = slice(offset, offset + parameter.numel())
            order = parameter.shape, _strides(parameter)
            value, grad = (piece_of(each, rows, dtype, *order) for each in (values, wire))
            value.copy_(parameter.detach())
            parameter.data = value
            self.places.append(Place(parameter, buffer, rows, number, value, grad))
            told = f"{self.names[parameter]} {_told(parameter)}"
            codec = "" if is_encoded(parameter) else "exact"
            spans.append(Span(offset, told[:200] if named else "", codec))
            offset += -(-parameter.numel() // ALIGN) * ALIGN
        self.spans[buffer] = tuple(spans)
        self.shapes[buffer] = tuple(shape_in_memory(each) for each in parameters)
        self.values[buffer] = torch.from_numpy(values).view(dtype)
        self.wires[buffer] = torch.from_numpy(wire).view(dtype)
        self.grads[buffer] = self.wires[buffer][:-WIRE_TAIL]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of elements of each buffer."""
        return {buffer: len(values) for buffer, values in self.values.items()}

    def pull(self, client: Client, prefix: str = "params") -> None:
        """Pull the parameters from the tables of an `Optimizer` or of `shoal train`.

        Args:
            client: a connected client.
            prefix: the prefix of the tables' names; "/params" for the first group's tables from
                another group.

        Raises:
            InvalidValue: no such tables, or tables of another model.

        Example:
            >>> with shoal.connect(run, group="eval") as client:  # doctest: +SKIP
            ...     FlatParams(model.parameters()).pull(client, "/params")
        """
        pulls = [
            client.pull(f"{prefix}.{buffer}", out=v, exact=True)
            for buffer, v in self.values.items()
        ]
        for each in pulls:
            each.wait()

    # ------------------------------------------------------------------ gradients

    def drop_grads(self) -> None:
        """Set every `.grad` to None, as torch's `zero_grad` does."""
        for parameter in self.parameters:
            parameter.grad = None

    def collect(self) -> None:
        """Copy every `.grad` into the flat buffers; note in `absent` the parameters without one."""
        self._collect(range(len(self.places)))

    def _collect(self, numbers: Sequence[int], come: Collection[int] = ()) -> None:
        """Copy the gradients of these places; those that have `come` are in the buffers already."""
        held = list(map(_GRAD, map(self.parameters.__getitem__, numbers)))
        into = list(map(self._gradients.__getitem__, numbers))
        there = numbers
        if any(map(is_, held, repeat(None))):
            there = [n for n, gradient in zip(numbers, held, strict=True) if gradient is not None]
            into = list(map(self._gradients.__getitem__, there))
        with torch.no_grad():
            _copy(into, [gradient for gradient in held if gradient is not None])
            if len(there) + len(come) == len(self.places):
                self.absent, self._stale = {}, None
            else:
                self._note_absent({*there, *come})

    def _note_absent(self, there: set[int]) -> None:
        """Note that only these places have a gradient; the gradients of others become zero."""
        everywhere = {*range(len(self.places))}
        before = everywhere if self._stale is None else self._stale
        for number in before - there:
            self._gradients[number].zero_()
        self._stale = there
        absent: dict[str, list[int]] = {}
        for number in sorted(everywhere - there):
            place = self.places[number]
            absent.setdefault(place.buffer, []).append(place.number)
        self.absent = {buffer: tuple(numbers) for buffer, numbers in absent.items()}

    def attach_grads(self, absent: Mapping[str, Sequence[int]]) -> None:
        """Set every `.grad` to its place in the flat buffers, or to None if it is `absent`."""
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        for place in self.places if absent else ():
            if place.number in absent.get(place.buffer, ()):
                place.parameter.grad = None


# ---------------------------------------------------------------------------- what can be flattened


def groups_of(
    parameters: Iterable[nn.Parameter] | Iterable[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:
    """Return the parameter groups, as torch.optim has them."""
    given: list[Any] = list(parameters)
    if given and all(isinstance(each, Mapping) for each in given):
        return given
    return [{"params": given}]


def named(
    groups: Sequence[Mapping[str, Any]], names: Mapping[nn.Parameter, str]
) -> dict[nn.Parameter, str]:
    """Return the name of each parameter: as given, as its group says, or by its place."""
    found: dict[nn.Parameter, str] = {}
    for number, group in enumerate(groups):
        told = group.get("param_names") or ()
        for at, parameter in enumerate(group["params"]):
            place = f"parameter {at}" if len(groups) == 1 else f"parameter {at} of group {number}"
            found[parameter] = names.get(parameter, told[at] if at < len(told) else place)
    return found


def check(parameter: nn.Parameter, name: str) -> None:
    """Refuse a parameter that cannot be a view of a flat buffer.

    Raises:
        InvalidValue: the parameter cannot.
    """
    if isinstance(parameter, _Uninitialized):
        raise InvalidValue(f"{name} is not initialized: pass a batch through the model first")
    if parameter.device.type != "cpu":
        raise InvalidValue(
            f"{name} is on {parameter.device}, and Shoal trains parameters in the CPU's memory "
            "only: call model.cpu() before the optimizer is made"
        )
    if parameter.layout != torch.strided or parameter.dtype not in DTYPES:
        kind = parameter.layout if parameter.layout != torch.strided else parameter.dtype
        raise InvalidValue(
            f"{name} is a parameter of {kind}, and tables have real numbers: "
            f"{', '.join(map(str, DTYPES))}; leave it out of the optimizer"
            + (", or use torch.view_as_real" if parameter.is_complex() else "")
        )
    if parameter.is_shared():  # type: ignore[no-untyped-call]
        raise InvalidValue(
            f"{name} is in shared memory, and Shoal would move it where other processes do not see "
            "it: train a copy of the model, and load its weights into the shared one"
        )
    if _strides(parameter) != parameter.stride():
        raise InvalidValue(
            f"{name} has elements that share memory, or gaps between them (strides "
            f"{parameter.stride()}): make it from a tensor's clone()"
        )


def _strides(parameter: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor with this order of dimensions and no gaps."""
    return torch.empty_like(parameter, device="meta").stride()


def _told(parameter: nn.Parameter) -> str:
    shape = str(tuple(parameter.shape))
    return shape if parameter.is_contiguous() else f"{shape} with strides {parameter.stride()}"


def _buffers(
    groups: Sequence[Mapping[str, Any]], frozen: bool
) -> dict[str, tuple[int, list[nn.Parameter]]]:
    """Return the group number and the parameters of each buffer."""
    found: dict[str, tuple[int, list[nn.Parameter]]] = {}
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            if not (parameter.requires_grad or frozen) or _is_empty(parameter):
                continue
            dtype = str(parameter.dtype).removeprefix("torch.")
            buffer = f"{dtype}.{number}" if number else dtype
            buffer += "" if parameter.requires_grad else FROZEN
            found.setdefault(buffer, (number, []))[1].append(parameter)
    return found


def _is_empty(parameter: nn.Parameter) -> bool:
    lazy = isinstance(parameter, _Uninitialized)
    return not lazy and not parameter.numel()


# ---------------------------------------------------------------------------- memory


def _memory(count: int, dtype: torch.dtype) -> np.ndarray:
    """Return zeroed memory that begins on a cache line; numpy owns it, so torch cannot move it."""
    size = count * dtype.itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def _shared(count: int, dtype: torch.dtype) -> np.ndarray:
    """Return zeroed memory that servers of this host read in place."""
    memory: np.ndarray = shared_zeros(count * dtype.itemsize, dtype=torch.uint8).numpy()
    return memory


def piece_of(
    memory: np.ndarray,
    rows: slice,
    dtype: torch.dtype,
    shape: Sequence[int],
    strides: Sequence[int],
) -> Tensor:
    """Return some rows of memory as a tensor with a storage of its own."""
    data = memory[rows.start * dtype.itemsize : rows.stop * dtype.itemsize]
    return torch.from_numpy(data).view(dtype).as_strided(tuple(shape), tuple(strides))


def _copy(into: list[Tensor], given: list[Tensor]) -> None:
    """Copy gradients, some of which may be sparse."""
    if all(map(is_, map(_LAYOUT, given), repeat(torch.strided))):
        if given:
            torch._foreach_copy_(into, given)
        return
    for place, gradient in zip(into, given, strict=True):
        place.copy_(gradient if gradient.layout is torch.strided else gradient.to_dense())


def shape_in_memory(parameter: Tensor) -> tuple[int, ...]:
    """Return a shape whose dimensions are in the order of memory, the slowest first.

    >>> shape_in_memory(torch.empty(2, 3).t())
    (2, 3)
    """
    strides = _strides(parameter)
    order = sorted(range(parameter.ndim), key=lambda n: -strides[n])
    return tuple(parameter.shape[n] for n in order)


def is_encoded(parameter: Tensor) -> bool:
    """Return whether codecs that are not for a certain parameter encode this one."""
    return parameter.ndim > 1 and parameter.numel() >= ENCODED_LEAST
