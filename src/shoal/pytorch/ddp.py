"""Codecs for torch's DistributedDataParallel: a communication hook."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import nan
from struct import pack
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.codecs import summed_codec_of
from shoal.collective.base import AllGather, AllReduce
from shoal.collective.encoded import EncodedLayer, EncodedMean, encoded_layer
from shoal.errors import InvalidValue, NotFinite
from shoal.keys import digest64
from shoal.protocol.machine import Outcome
from shoal.pytorch.flat_parameters import is_encoded

Future = Any  # torch.futures.Future[Tensor], which has no type for its argument


class Bucket(Protocol):
    """A torch.distributed.GradBucket."""

    def buffer(self) -> Tensor: ...
    def gradients(self) -> list[Tensor]: ...
    def parameters(self) -> list[Tensor]: ...
    def is_last(self) -> bool: ...


Hook = Callable[["DdpState", Bucket], Future]


class DdpState:
    """The state of `ddp_hook` on one process: what its codec keeps of each parameter.

    Buckets are averaged one after the other by a thread of their own, while `backward` goes on: all
    processes have to ask for their collectives in the same order.

    Attributes:
        steps: the number of steps so far.
    """

    def __init__(self, codec: str, seed: int) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidValue("ddp_hook comes after torch.distributed.init_process_group")
        self.steps = 0
        self._codec = summed_codec_of(codec)
        self._seed = seed
        self._group: Any = dist.new_group(backend="gloo")
        self._numbers: dict[Tensor, int] = {}  # in the order of the first step's buckets
        self._layers: dict[int, EncodedLayer] = {}
        self._mean = EncodedMean(self._layers, seed, dist.get_rank())
        self._loaded: dict[int, Mapping[str, Tensor]] = {}
        self._thread = ThreadPoolExecutor(1, "shoal-ddp")

    # ------------------------------------------------------------------ the mean of a bucket

    def begin(self, bucket: Bucket) -> Future:
        """Begin to average the gradients of a bucket; returns a future of its flat tensor."""
        values: Tensor = bucket.buffer()
        if values.device.type != "cpu":
            raise InvalidValue(f"ddp_hook has codecs for models on the CPU, not {values.device}")
        step = self.steps
        self.steps += bool(bucket.is_last())
        gradients = dict(
            zip(map(self._number, bucket.parameters()), bucket.gradients(), strict=True)
        )
        future: Future = torch.futures.Future()
        self._thread.submit(self._run, self._averaged(values, gradients, step), values, future)
        return future

    def _number(self, parameter: Tensor) -> int:
        """Return the number of a parameter, which keeps it where DDP rebuilds its buckets."""
        number = self._numbers.get(parameter)
        if number is None:
            number = self._numbers[parameter] = len(self._numbers)
            if is_encoded(parameter):
                self._begin_layer(number, tuple(parameter.shape))
        return number

    def _begin_layer(self, number: int, shape: tuple[int, ...]) -> None:
        key = digest64(pack("<2q", self._seed, number))
        layer = encoded_layer(self._codec, shape, key)
        if layer is not None:
            self._layers[number] = layer
            if number in self._loaded:
                layer.load(self._loaded.pop(number))

    def _averaged(
        self, values: Tensor, gradients: Mapping[int, Tensor], step: int
    ) -> Generator[Any, Any, None]:
        """Replace the gradients of a bucket by their means over the processes.

        If a process has a NaN or an infinity, all of them get NaNs, as without a codec, and what
        was left out stays as it was.
        """
        encodes = step >= self._codec.begins_at
        layers = {
            n: each.view(-1) for n, each in gradients.items() if encodes and n in self._layers
        }
        others = [each for number, each in gradients.items() if number not in layers]
        fault = torch.zeros(1, dtype=values.dtype)
        try:
            self._mean.encode(layers, step)  # the first step has other buckets than later ones
        except NotFinite:
            fault += 1
        exact = torch.cat([*(each.reshape(-1) for each in others), fault])
        yield AllReduce(exact, mean=True)
        if exact[-1]:
            self._mean.undo()
            values.fill_(nan)
            return
        for each, mean in zip(
            others, torch.split(exact, [*map(torch.numel, others), 1]), strict=False
        ):
            each.copy_(mean.view_as(each))
        yield from self._mean.over_workers()

    def _run(self, program: Generator[Any, Any, None], values: Tensor, future: Future) -> None:
        try:
            answer: Any = None
            while True:
                try:
                    request = program.send(answer)
                except StopIteration:
                    break
                answer = self._collective(request)
            future.set_result(values)
        except Exception as error:  # for the caller of `backward`
            future.set_exception(error)

    def _collective(self, request: AllReduce | AllGather) -> Outcome:
        workers = dist.get_world_size()
        if isinstance(request, AllReduce):
            request.tensor.div_(workers)  # before it is summed: a sum of halves may be infinite
            dist.all_reduce(request.tensor, group=self._group)
            return Outcome()
        own = torch.from_numpy(request.data)
        every = torch.empty(workers, len(own), dtype=torch.uint8)
        dist.all_gather([*every], own, group=self._group)
        return Outcome(value=every.view(-1).numpy().data)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the number of steps, and tensors by parameter.

        Parameters are numbered as the first step has seen them. Each process has its own state.
        """
        return {"steps": self.steps, "codec": str(self._codec), **self._mean.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` has returned, before the first step.

        Raises:
            InvalidValue: a step was taken, or the state is of another codec.
        """
        if self.steps or self._numbers:
            raise InvalidValue("the state of ddp_hook is loaded before the first step")
        if state["codec"] != str(self._codec):
            raise InvalidValue(f"the state is of codec {state['codec']}, not {self._codec}")
        self.steps = int(state["steps"])
        self._loaded = {int(name): of for name, of in state.items() if name.isdecimal()}


def ddp_hook(codec: str, *, seed: int = 0) -> tuple[DdpState, Hook]:
    """Return the state and the function of a DDP communication hook that encodes gradients.

    The mean of the gradients of a bucket over n processes::

        g = sum_i decode(encode(g_i / n + e_i))        e_i <- g_i / n + e_i - what was decoded

    with a residual e_i by parameter for biased codecs. Casts, `randomk` and `powersgd` are summed
    by allreduce; what others encode is gathered. Vectors and parameters of less than 1,024 elements
    travel as they are.

    Args:
        codec: the codec, such as "powersgd:2", "int:8" or "bf16" (`shoal list codecs`).
        seed: the seed of random bits, the same on all processes.

    Returns:
        The arguments of `DistributedDataParallel.register_comm_hook`. The state has `state_dict`
        and `load_state_dict`, of tensors and numbers, for each process's checkpoint.

    Raises:
        InvalidValue: there is no process group yet, or an option of the codec is out of its range.
        UnknownName: no such codec.

    Example:
        >>> model = DistributedDataParallel(module)                        # doctest: +SKIP
        >>> model.register_comm_hook(*shoal.ddp_hook("powersgd:2"))         # doctest: +SKIP

    References:
        Vogels et al. 2019, "PowerSGD", algorithms 1 and 2; Li et al. 2020, "PyTorch Distributed",
        section 3.2.3 (buckets).
    """
    return DdpState(codec, seed), lambda state, bucket: state.begin(bucket)  # torch reads its names
