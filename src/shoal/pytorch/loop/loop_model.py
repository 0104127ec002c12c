"""LoopModel: the parameters of a user's training loop, which may do to them what torch allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import NotFinite, UsageError
from shoal.pytorch.flat_parameters import FlatParams, Place, piece_of
from shoal.pytorch.loop.watching import Watch, data_of_parameter, same_bits, set_data

_BASE: Any = torch._C.TensorBase
_POINTER: Callable[[Tensor], int] = _BASE.data_ptr
_VERSION: Callable[[Tensor], int] = _BASE._version.__get__
_TRAINED: Callable[[Tensor], bool] = _BASE.requires_grad.__get__

Written = Mapping[str, tuple[int, ...]]  # by buffer, the numbers of parameters


class LoopModel(FlatParams):
    """The `Model` of a user's training loop, which has computed the gradients before a step.

    Between two steps the loop may write to parameters, replace their memory, and freeze them or
    not. `look` finds these changes, copies replaced memory to the flat buffers, and says which
    parameters have other values now.

    Args:
        groups: the parameter groups of a torch optimizer.
        names: the parameters' names.
    """

    def __init__(
        self, groups: Iterable[Mapping[str, Any]], names: Mapping[nn.Parameter, str] | None = None
    ) -> None:
        super().__init__(groups, frozen=True, names=names)
        self.weight = 1.0
        self._watch = Watch(self.parameters)
        self._pointers = list(map(_POINTER, self.parameters))
        self._trained = list(map(_TRAINED, self.parameters))
        self.settle()

    def gradient(self, batch: object) -> tuple[float, float]:
        return nan, self.weight

    def settle(self) -> None:
        """Note the parameters as they are now, as the result of the last step."""
        self._versions = list(map(_VERSION, self.parameters))
        self._watch.begin()

    def check_finite(self, policy: str) -> None:
        """Look for NaNs and infinities in the gradients that were collected.

        Args:
            policy: the policy: "reject" refuses them, "zero" replaces them by 0, "allow" does not
                look.

        Raises:
            NotFinite: there is one, and the policy is "reject".
        """
        for gradients in self.grads.values() if policy != "allow" else ():
            if isfinite(gradients.sum()) or bool(gradients.isfinite().all()):
                continue
            if policy == "reject":
                place = next(p for p in self.places if not bool(p.grad.isfinite().all()))
                raise NotFinite(
                    f"the gradient of {self.names[place.parameter]} has a NaN or an infinity, and "
                    "was not exchanged. Lower the learning rate or clip the gradient, or make the "
                    "optimizer with nonfinite='zero' or 'allow'"
                )
            gradients.nan_to_num_(0.0, 0.0, 0.0)

    def look(self) -> Written:
        """Find the changes since `settle`, and return the parameters that the loop has written to.

        Raises:
            UsageError: a parameter cannot be trained as it is now: its shape, dtype or device has
                changed, or it was moved to shared memory. Nothing has changed.
        """
        found: set[int] = set()
        if self._watch.replaced or list(map(_POINTER, self.parameters)) != self._pointers:
            found |= self._take_back()
        versions = list(map(_VERSION, self.parameters))
        if versions != self._versions:
            pairs = enumerate(zip(versions, self._versions, strict=True))
            found |= {number for number, (now, before) in pairs if now != before}
        found |= self._watch.written()
        trained = list(map(_TRAINED, self.parameters))
        if trained != self._trained:
            self._trained = trained
            both = zip(self.places, trained, strict=True)
            active = {place.buffer for place, is_trained in both if is_trained}
            self.idle = frozenset(self.values.keys() - active)
        written: dict[str, list[int]] = {}
        for number in sorted(found):
            place = self.places[number]
            written.setdefault(place.buffer, []).append(place.number)
        return {buffer: tuple(numbers) for buffer, numbers in written.items()}

    def _take_back(self) -> set[int]:
        """Copy parameters whose memory was replaced into their places, and make them views again.

        Return the numbers of the places whose values have changed.
        """
        moved = []
        for number, place in enumerate(self.places):
            now = data_of_parameter(place.parameter)
            if number in self._watch.replaced or now.data_ptr() != self._pointers[number]:
                self._check_moved(place, now)
                moved.append((number, place, now.clone()))
        changed = set()
        for number, place, now in moved:
            if not same_bits(now, place.value):
                place.value.copy_(now)
                changed.add(number)
            self.places[number] = place = self._reattached(place)
            self._gradients[number] = place.grad
            set_data(place.parameter, place.value)
            self._pointers[number] = place.parameter.data_ptr()
        return changed

    def _check_moved(self, place: Place, now: Tensor) -> None:
        """Refuse memory that a parameter of this place cannot have."""
        before, name = place.value, self.names[place.parameter]
        for what, was, is_now in (
            ("on", before.device, now.device),
            ("of", before.dtype, now.dtype),
            ("of shape", tuple(before.shape), tuple(now.shape)),
        ):
            if was != is_now:
                raise UsageError(
                    f"{name} was {what} {was} when the optimizer was made, and is {what} {is_now} "
                    "now; convert the model first, then make the optimizer"
                )
        if now.is_shared():  # type: ignore[no-untyped-call]
            raise UsageError(
                f"{name} was moved to shared memory, in which Shoal does not train: share a copy "
                "of the model, and load the weights into it"
            )

    def _reattached(self, place: Place) -> Place:
        """Return the place, with its gradient in the flat buffer again if that was replaced."""
        start = self.grads[place.buffer].data_ptr()
        if place.grad.data_ptr() == start + place.rows.start * place.grad.element_size():
            return place
        memory = self.wires[place.buffer].view(torch.uint8).numpy()
        order = place.value.shape, place.value.stride()
        return place._replace(grad=piece_of(memory, place.rows, place.value.dtype, *order))
