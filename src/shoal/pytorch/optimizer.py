"""`shoal.Optimizer`: wraps a torch optimizer and makes its training loop distributed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_ as clip

from shoal.client.context import Context, current
from shoal.errors import UnknownName, UsageError
from shoal.pytorch import optimizer_state as states
from shoal.pytorch.loop.defaults import choose
from shoal.pytorch.loop.hyperparameters import FixedHyperparameters, norm_for
from shoal.pytorch.loop.loop_model import LoopModel
from shoal.pytorch.loop.module_state import Buffers, ModuleState
from shoal.pytorch.loop.shared_training import SharedTraining
from shoal.strategies import Strategy, StrategyOptions
from shoal.strategies.base import Numbers
from shoal.strategies.layer_codecs import registered
from shoal.tables.from_torch import from_torch


class Optimizer(torch.optim.Optimizer):
    """Wraps a torch optimizer; `step` exchanges gradients and parameters with the other workers.

    Where a strategy's update runs on servers, the optimizer's class and hyper-parameters become the
    tables' access method (server-side optimizer), one table for each dtype and parameter group. The
    groups' learning rates are sent with each push, so that torch's lr_schedulers work on this
    object. With P workers, weights w_i and gradients g_i, a synchronous step computes::

        g = sum_i w_i g_i / sum_i w_i        theta <- update(theta, g)

    Parameters and gradients become views of flat buffers. All workers start from rank 0's
    parameters, or from the checkpoint of a resumed run. A worker whose data end first may stop:
    the others go on.

    With strategies that take local steps ("diloco", "easgd", ...) the torch optimizer runs on each
    worker, on its own parameters, and every `tau` steps there is an exchange. After the last step
    all workers call `flush`, so that the steps since the last exchange are not lost.

    Args:
        inner: the torch optimizer: SGD, Adagrad, RMSprop, Adadelta, Adam, AdamW, NAdam, RAdam,
            Adamax, ASGD or Rprop of torch.optim; where it runs on workers, any optimizer but
            SparseAdam. It goes on from its state (from rank 0's, where it runs on servers or with
            "allreduce").
        strategy: the strategy: a name of `shoal list strategies`, such as "sync" (BSP), "ssp",
            "asgd" (ASP), "allreduce", "diloco" or "easgd"; or a class of your own. None for the
            strategy of `shoal run`, or "sync".
        staleness, settings: the bound of "ssp", in clocks, and the settings of the strategy, by
            name, such as {"tau": 50}. Those not given are the ones of `shoal run`, if it names the
            same strategy.
        embeddings: the modules whose embedding gradients `step` pushes; every `shoal.nn.Embedding`
            of the context by default.
        module: the model. With it, all workers begin with the buffers and untrained parameters of
            the worker of the lowest rank as well, and errors name parameters.
        buffers: the treatment of the module's buffers, such as BatchNorm's, by `flush`: "rank0"
            replaces them by those of the worker of the lowest rank, "mean" averages those with
            floating-point numbers and replaces the others, "local" leaves each worker its own.
        clip_norm: the largest 2-norm of the gradient of all parameters, after it was averaged over
            the workers, as in scripts for DistributedDataParallel; with local steps, of a worker's
            own gradient. Where servers average, no worker has the mean: with more than one worker,
            `clip_norm` is refused; use `shoal.clip_grad_norm_` before `step`.
        nonfinite: the treatment of a gradient with a NaN or an infinity: "reject" refuses the step,
            "zero" replaces the value by 0, "allow" does not check.
        codec: the codec of pushes to servers, which makes them smaller, such as "int:8" (`shoal
            list codecs`), for all parameters but vectors and those of less than 1,024 elements; or
            codecs by pattern of names (with `module`), or number, such as {"*.weight": "int:4",
            "0": "none"}.
        server_codec: the codec of the parameters that come back, such as "int:8".
        context: the context of `shoal.init()` by default.

    Raises:
        UnknownName: no such strategy, setting or codec, or an optimizer that servers do not have.
        InvalidValue: a hyper-parameter that servers do not have, or a value out of range; or the
            run goes on without lost or late workers, and the strategy cannot.
        UsageError: `shoal.init()` was not called, or the checkpoint lacks the parameters.

    Example:
        >>> import shoal, torch
        >>> context = shoal.init()
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
        >>> optimizer.zero_grad()
        >>> model(torch.tensor([[1.0, 2.0]])).sum().backward()
        >>> optimizer.step()
        >>> model.weight.tolist()
        [[0.5, 0.0]]

    References:
        Dean et al. 2012, section 4.1 ("asgd"); Ho et al. 2013, section 2 ("ssp"); Patarasuk & Yuan
        2009 ("allreduce").
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        strategy: str | type[Strategy] | None = None,
        *,
        staleness: int | None = None,
        settings: Mapping[str, Any] | None = None,
        embeddings: Iterable[torch.nn.Module] | None = None,
        module: torch.nn.Module | None = None,
        buffers: Buffers = "rank0",
        clip_norm: float | None = None,
        nonfinite: Literal["reject", "zero", "allow"] = "reject",
        codec: str | Mapping[str, str] = "",
        server_codec: str = "",
        context: Context | None = None,
    ) -> None:
        self._context = context or current()
        kind, chosen = choose(self._context.defaults, inner, strategy, staleness, settings)
        accesses = [] if kind.traits.optimizer_on_workers else from_torch(inner)
        if isinstance(inner, torch.optim.SparseAdam):
            raise UnknownName(
                "SparseAdam takes sparse gradients, and workers exchange dense ones; use Adam, or "
                "shoal.nn.Embedding, whose rows have an optimizer of their own on the servers"
            )
        closure = signature(inner.step).parameters.get("closure")
        self._steers = closure is not None and closure.default is closure.empty
        if self._steers and not kind.traits.sends_gradients:
            raise UnknownName(
                f"{type(inner).__name__} evaluates the loss of all workers in each step, and "
                f"strategy {kind.name!r} takes steps on one worker's: use strategy 'allreduce'"
            )
        self._inner = inner
        self._owned = None if embeddings is None else list(embeddings)
        self._wrapped = False
        super().__init__(inner.param_groups, dict(inner.defaults))
        self.param_groups = inner.param_groups  # one list, so that schedulers of either see both
        names = {} if module is None else {each: n for n, each in module.named_parameters()}
        self._model = LoopModel(inner.param_groups, names)
        prefix = f"params{self._context.models or ''}"
        self._context.models += 1
        of_buffers = {b: accesses[number] for b, number in self._model.groups.items() if accesses}
        options = StrategyOptions(
            prefix=prefix,
            accesses=of_buffers,
            update=self._update if kind.traits.optimizer_on_workers else None,
            workers=self._context.world_size,
            rank=self._context.rank,
            nonfinite=nonfinite,
            codec=registered(codec),
            server_codec=server_codec,
            seed=self._context.client.options.seed,
            **chosen,
        )
        self._strategy = made = kind(options)
        self._state = states.state_of(inner, self._model, made, of_buffers)
        made.check_losses(self._context.on_worker_loss, self._context.client.options.on_timeout)
        self._clip_norm = norm_for(made, clip_norm)
        others = ModuleState(module, self._model, buffers)
        self._shared = SharedTraining(self._context, inner, self._model, made, self._state, others)
        self._drive(self._shared.begin())
        self._fixed = None if kind.traits.optimizer_on_workers else FixedHyperparameters(inner)
        self._context.before_close(self)
        self._wrapped = True

    @overload
    def step(self, closure: None = None, *, weight: float = 1.0) -> None: ...
    @overload
    def step(self, closure: Callable[[], float], *, weight: float = 1.0) -> float: ...
    def step(
        self, closure: Callable[[], float] | None = None, *, weight: float = 1.0
    ) -> float | None:
        """Push the gradients in `.grad` and of embeddings, then pull the updated parameters.

        Args:
            closure: a function that recomputes the loss and its gradients, as in torch.optim.
            weight: the weight of this worker's gradient in the round's mean, such as its batch
                size; 0 for a step without data.

        Returns:
            The closure's loss; None without a closure.

        Raises:
            InvalidValue: a hyper-parameter other than the rate has changed since the optimizer
                was wrapped, and servers run it.
            UsageError: the parameters were written to since the last step, and servers have others;
                or an optimizer that evaluates the loss, such as LBFGS, has no closure.
            NotFinite: a gradient holds a NaN or an infinity that `nonfinite` or the table of an
                embedding refuses.
        """
        self._context.stepped(self)
        if self._steers:
            return self._steered(closure, weight)
        loss: float | None = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._fixed is not None:
            self._fixed.check_unchanged(self.param_groups)
        self._take_in()
        self._push_embeddings(weight)
        if self._strategy.traits.sends_gradients:
            if self._clip_norm is not None and self._strategy.traits.uses_servers:
                clip(self._model.parameters, self._clip_norm)
            self._model.collect()
            if weight > 0 and not self._strategy.traits.uses_servers:  # else the client checks
                self._model.check_finite(self._strategy.options.nonfinite)
        self._model.weight = weight
        self._strategy.rates = {
            buffer: float(self.param_groups[number]["lr"])
            for buffer, number in self._model.groups.items()
        }
        self._drive(self._strategy.step(self._model, ()))
        return loss

    def _take_in(self) -> None:
        """Hand the strategy the parameters that the loop has written to since the last step."""
        written = self._model.look()
        if written:
            client = self._context.client
            writes = client.rank == client.first_rank
            client.drive(self._strategy.rewrite(self._model, written, writes))

    def _drive(self, program: Generator[Any, Any, Any]) -> None:
        """Run a program that changes the parameters."""
        with torch.no_grad():
            self._context.client.drive(program)
        self._model.settle()

    def _update(self, absent: Numbers) -> None:
        """Take a step of the wrapped optimizer, where it runs on the workers."""
        if self._strategy.traits.sends_gradients:
            self._model.attach_grads(absent)
        if self._clip_norm is not None:
            clip(self._model.parameters, self._clip_norm)
        self._inner.step()

    def flush(self) -> None:
        """Exchange the remaining steps, and make parameters and buffers the same on all workers.

        All workers call it, after their last step and before a model is evaluated or saved. Without
        servers ("p2p", "allreduce", and `exchange` "allreduce"), a worker whose data end first
        takes part in the others' steps here, until all have called it. With servers, such a worker
        has the parameters of its last step. Buffers of `module` become the same as `buffers` says.
        Without a call, the remaining steps are exchanged when the run ends, with a warning.

        Example:
            >>> import shoal, torch
            >>> _ = shoal.init()
            >>> model = torch.nn.Linear(2, 1)
            >>> inner = torch.optim.AdamW(model.parameters())
            >>> optimizer = shoal.Optimizer(inner, strategy="diloco", settings={"tau": 50})
            >>> model(torch.ones(2)).backward()
            >>> optimizer.step()
            >>> optimizer.flush()
        """
        self._take_in()
        self._drive(self._shared.settle())

    def leave(self, optimizers: Sequence[Optimizer]) -> None:
        """Exchange the remaining steps before this worker leaves the run; the context calls it.

        Args:
            optimizers: the optimizers of this worker that are in use. If workers take the exchanges
                of several together, this one cannot know which the others step next, and takes no
                part in them.
        """
        if self._strategy.owes():
            warnings.warn(
                "steps of this worker were exchanged when the run ended, after the script's last "
                "look at the model: call optimizer.flush() on all workers before you evaluate or "
                "save it",
                stacklevel=2,
            )
            self.flush()
        elif [each for each in optimizers if each._shared.in_step] == [self]:
            self._drive(self._shared.accompany())

    def _steered(self, closure: Callable[[], float] | None, weight: float) -> float:
        """Take a step of an optimizer that evaluates the loss itself, such as LBFGS.

        Each evaluation gives the weighted mean over all workers, so that all decide alike.
        """
        if closure is None:
            raise UsageError(
                f"{type(self._inner).__name__} evaluates the loss: give step a closure"
            )
        drive = self._context.client.drive
        self._take_in()

        def averaged() -> float:
            loss = torch.as_tensor(closure()).detach().to(torch.float64, copy=True)
            with torch.no_grad():
                return drive(self._shared.averaged(loss, weight))

        with torch.enable_grad():
            found = float(self._inner.step(averaged))
        self._model.settle()
        return found

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a parameter group: tables have the size of the parameters that were wrapped.

        Raises:
            UsageError: always, once the optimizer is made.
        """
        if self._wrapped:
            raise UsageError(
                "parameters cannot be added to a shoal.Optimizer; give them to the torch optimizer "
                "before it is wrapped, frozen (requires_grad_(False)) until you train them"
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, as torch does, and those of embeddings that were not pushed.

        Args:
            set_to_none: whether `.grad` becomes None, so that a parameter without a new gradient is
                left alone; otherwise it becomes zeros, which are a gradient.
        """
        super().zero_grad(set_to_none)
        for each in self._embeddings():
            each.pending.clear()

    def _embeddings(self) -> list[Any]:
        """Return the embeddings whose gradients this optimizer pushes."""
        if self._owned is None:
            return list(self._context.embeddings)
        from shoal.pytorch.embedding import embeddings_of

        return list(embeddings_of(self._owned))

    def _push_embeddings(self, weight: float) -> None:
        waiting = [each for each in self._embeddings() if each.pending]
        if waiting and weight > 0:
            from shoal.pytorch.embedding import push  # it needs numba

            push(*sorted(waiting, key=lambda each: each.spec.name), weight=weight)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the wrapped optimizer would have had alone, which torch can load.

        One worker alone may call it, after `flush` where there are local steps. With "sync" and
        "allreduce" the state is of this worker's clock, as the model's parameters are. With "ssp"
        and "asgd" each fragment of a table is of one moment; all are of one after a barrier.

        Returns:
            The `state_dict` of the torch optimizer: its parameter groups, and for each parameter
            its moments and number of steps.

        Example:
            >>> import shoal, torch
            >>> _ = shoal.init()
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = shoal.Optimizer(torch.optim.Adam(model.parameters()))
            >>> model(torch.ones(2)).backward()
            >>> optimizer.step()
            >>> sorted(optimizer.state_dict()["state"][0])
            ['exp_avg', 'exp_avg_sq', 'step']
        """
        if self._strategy.owes():
            warnings.warn(
                "this worker has taken steps that were not exchanged yet: call optimizer.flush() "
                "on all workers before a state is saved",
                stacklevel=2,
            )
        self.state.update(self._context.client.drive(self._state.read()))
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that this class or torch has saved.

        All workers call it together. The worker of the lowest rank writes its parameters, moments
        and numbers of steps; the others get the parameters into their models. So load the model's
        weights before the optimizer's state.

        Args:
            state_dict: the state of an optimizer of the same class with the same parameters.

        Raises:
            InvalidValue: the state is of another optimizer; or servers run this one, and the state
                has other hyper-parameters (except the rate) than they do. Nothing is changed.
            UsageError: another group trains these parameters, or the worker that writes was lost.
        """
        context = self._context
        mine = context.client.options.group
        if self._strategy.traits.uses_servers and self._group_of_tables() != mine:
            raise UsageError("another group trains these parameters: only its workers load a state")
        given = states.before_load(self, state_dict)
        other = states.loaded(self._inner, given)
        if self._fixed is not None:
            self._fixed.check_state(other.param_groups)
        self._state.check(other)
        self._model.look()  # what the loop has loaded is written with the state
        writer = context.client.first_rank
        context.client.drive(self._state.write(other, context.client.rank == writer))
        if writer not in {member.rank for member in context.client.view.workers}:
            raise UsageError(f"worker {writer} was lost while it wrote the state; load it again")
        for group, new in zip(self.param_groups, other.param_groups, strict=True):
            group.update({name: value for name, value in new.items() if name != "params"})
        self._model.settle()
        states.after_load(self)

    def _group_of_tables(self) -> str:
        client = self._context.client
        [group] = {client.table(spec.name).group for spec in self._strategy.tables(self._model)}
        return group

    @property
    def flat(self) -> dict[str, Tensor]:
        """The flat parameters, by buffer (`shoal.pytorch.FlatParams`)."""
        return self._model.values
