"""Codecs for torch's DistributedDataParallel: a communication hook."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from math import nan
from queue import SimpleQueue
from struct import pack
from threading import Thread, current_thread
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
from shoal.pytorch.flat_parameters import is_encoded, shape_in_memory

EXIT_S = 5.0
Future = Any  # torch.futures.Future[Tensor], which has no type for its argument


class Bucket(Protocol):
    """A torch.distributed.GradBucket."""

    def buffer(self) -> Tensor: ...
    def gradients(self) -> list[Tensor]: ...
    def parameters(self) -> list[Tensor]: ...
    def is_last(self) -> bool: ...


Hook = Callable[["DdpState", Bucket], Future]
Program = Generator[AllReduce | AllGather, Outcome | None, None]
Job = tuple[Program, Callable[[AllReduce | AllGather], Outcome], Future, list[Exception]]


class DdpState:
    """The state of `ddp_hook` on one process: what its codec keeps of each parameter.

    Buckets are averaged one after the other by a thread of their own, while `backward` goes on: all
    processes have to ask for their collectives in the same order.

    Attributes:
        steps: the number of steps so far.
    """

    def __init__(self, codec: str, seed: int, group: Any) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidValue("ddp_hook comes after torch.distributed.init_process_group")
        self.steps = 0
        self._codec = summed_codec_of(codec)
        self._seed = seed
        self._group = _group_like(group or dist.group.WORLD)
        self._workers = dist.get_world_size(self._group)
        self._numbers: dict[Tensor, int] = {}  # in the order of the first step's buckets
        self._layers: dict[int, EncodedLayer] = {}
        self._mean = EncodedMean(self._layers, seed, dist.get_rank(self._group))
        self._loaded: dict[int, Mapping[str, Tensor]] = {}
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        thread = Thread(target=_work, args=(self._queue,), name="shoal-ddp", daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._queue, thread)  # at exit, too

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
        program = self._averaged(values, gradients, step)
        ended: Future = torch.futures.Future()
        errors: list[Exception] = []
        self._queue.put((program, self._collective, ended, errors))
        return ended.then(partial(_result, values, errors))

    def _number(self, parameter: Tensor) -> int:
        """Return the number of a parameter, which keeps it where DDP rebuilds its buckets."""
        number = self._numbers.get(parameter)
        if number is None:
            number = self._numbers[parameter] = len(self._numbers)
            if is_encoded(parameter):
                self._begin_layer(number, shape_in_memory(parameter))
        return number

    def _begin_layer(self, number: int, shape: tuple[int, ...]) -> None:
        key = digest64(pack("<2q", self._seed, number))
        layer = encoded_layer(self._codec, shape, key)
        if layer is not None:
            self._layers[number] = layer
            if number in self._loaded:
                layer.load(self._loaded.pop(number))

    def _averaged(self, values: Tensor, gradients: Mapping[int, Tensor], step: int) -> Program:
        """Replace the gradients of a bucket by their means over the processes.

        If a process has a NaN or an infinity, all of them get NaNs, as without a codec, and what
        was left out stays as it was.
        """
        encodes = step >= self._codec.begins_at
        layers = {
            number: _flat(each, values)
            for number, each in gradients.items()
            if encodes and number in self._layers
        }
        # a parameter that this process has not used owes what it has owed, and sends nothing
        weights = {number: float(bool(each.any())) for number, each in layers.items()}
        others = [_flat(each, values) for n, each in gradients.items() if n not in layers]
        fault = torch.zeros(1, dtype=values.dtype)
        try:
            self._mean.encode(layers, weights, step)  # the first step has other buckets
        except NotFinite:
            fault += 1
        exact = torch.cat([*others, fault])
        yield AllReduce(exact, mean=True)
        if exact[-1]:
            self._mean.undo()  # where they could be encoded
            values.fill_(nan)
            return
        for each, mean in zip(
            others, torch.split(exact, [*map(torch.numel, others), 1]), strict=False
        ):
            each.copy_(mean)
        yield from self._mean.over_workers()

    def _collective(self, request: AllReduce | AllGather) -> Outcome:
        if isinstance(request, AllReduce):
            request.tensor.div_(self._workers)  # before it is summed: halves may overflow
            dist.all_reduce(request.tensor, group=self._group)
            return Outcome()
        own = torch.from_numpy(request.data)
        every = torch.empty(self._workers, len(own), dtype=torch.uint8)
        dist.all_gather([*every], own, group=self._group)
        return Outcome(value=every.view(-1).numpy().data)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the number of steps, and tensors by parameter.

        Parameters are numbered as the first step has seen them. Each process has its own state.
        """
        loaded = {str(number): of for number, of in self._loaded.items()}
        told = {"steps": self.steps, "codec": str(self._codec)}
        return {**told, **loaded, **self._mean.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` has returned, before the first step.

        Raises:
            InvalidValue: a step was taken, or the state is of another codec.
        """
        if self.steps or self._numbers:
            raise InvalidValue("the state of ddp_hook is loaded before the first step")
        if (codec := state.get("codec", "none")) != str(self._codec):
            raise InvalidValue(f"the state is of codec {codec}, not {self._codec}")
        self.steps = int(state["steps"])
        self._loaded = {int(name): of for name, of in state.items() if name.isdecimal()}


def ddp_hook(codec: str, *, seed: int = 0, process_group: Any = None) -> tuple[DdpState, Hook]:
    """Return the state and the function of a DDP communication hook that encodes gradients.

    The mean of the gradients of a bucket over n processes::

        g = sum_i decode(encode(g_i / n + e_i))        e_i <- g_i / n + e_i - what was decoded

    with a residual e_i by parameter for biased codecs. Casts, `randomk` and `powersgd` are summed
    by allreduce; what others encode is gathered. Vectors and parameters of less than 1,024 elements
    travel as they are.

    Args:
        codec: the codec, such as "powersgd:2", "int:8" or "bf16" (`shoal list codecs`).
        seed: the seed of random bits, the same on all processes.
        process_group: the group that DistributedDataParallel has; by default that of all processes.
            All of the group call this.

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
    return DdpState(codec, seed, process_group), lambda state, bucket: state.begin(
        bucket
    )  # torch reads its names


def _group_like(group: Any) -> Any:
    """Return another group of the same processes, with its time-out, for the hook's collectives."""
    options = group._get_backend(torch.device("cpu")).options
    return dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=options._timeout,
        backend="gloo",
        use_local_synchronization=True,  # processes of other groups do not take part
    )


def _end(queue: SimpleQueue[Job | None], thread: Thread) -> None:
    """End the thread; not if it waits for a process that will never come."""
    queue.put(None)
    if thread is not current_thread():
        thread.join(EXIT_S)  # a thread that Python stops while torch has it would abort


def _work(queue: SimpleQueue[Job | None]) -> None:
    """Run one program after another, until there is None.

    A program is forgotten before its future is done. Otherwise this thread may be the last one that
    has the state, and free its process group while Python ends.
    """
    while (job := queue.get()) is not None:
        program, collective, ended, errors = job
        try:
            answer: Any = None
            with suppress(StopIteration):
                while True:
                    answer = collective(program.send(answer))
        except Exception as error:  # for the caller of `backward`
            errors.append(error)
        del job, program, collective, errors, answer
        ended.set_result(None)


def _result(values: Tensor, errors: list[Exception], ended: Future) -> Tensor:
    """Return the values, or raise the error, for torch."""
    if errors:
        raise errors[0]
    return values


def _flat(gradient: Tensor, values: Tensor) -> Tensor:
    """Return the part of a bucket's values that is a gradient, in the order of memory."""
    start = gradient.storage_offset() - values.storage_offset()
    return values[start : start + gradient.numel()]
