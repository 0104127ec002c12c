"""The hooks of a worker's training loop in a run: its events, evaluations and figures."""

from __future__ import annotations

from hashlib import blake2b
from math import isnan
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from shoal.apps.train.setup import WorkerSetup
from shoal.pytorch.flat_parameters import FlatParams
from shoal.pytorch.worker_state import WorkerStates
from shoal.storage.event_log import EventLog
from shoal.strategies import StepResult

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.simulation.training import SimulatedClient

EVALUATIONS_AN_EPOCH = 5
RESIDUALS = "residuals"  # in a worker's state: what codecs have left out


class Progress:
    """The loop's hooks: events, evaluations, and this worker's figures.

    clock:      the clock that training has reached, with those of the run that this one continues
    evaluates:  whether to evaluate during training, not only at the end
    """

    def __init__(
        self,
        setup: WorkerSetup,
        client: Client | SimulatedClient,
        log: EventLog,
        states: WorkerStates | None = None,
        start_clock: int = 0,
        evaluates: bool = True,
    ) -> None:
        spec, dataset, strategy = setup.spec, setup.dataset, setup.strategy
        self._client = client
        self._states = states
        self._strategy = strategy
        self._start_clock = self.clock = start_clock
        self._learner = setup.model
        self._log = log
        self._batches = setup.batches
        self._evaluates = evaluates
        # Workers in step evaluate at the same steps, so the period has to be the same for all.
        longest = -(-len(dataset.train_y) * spec.redundancy // (spec.workers * spec.worker_batch))
        self._every = spec.eval_every or max(
            1, (longest if strategy.traits.in_step else len(setup.batches)) // EVALUATIONS_AN_EPOCH
        )
        self._test = dataset.transform(dataset.test_x, dataset.test_y)
        self._samples = 0.0
        self._steps = self._since = 0  # steps in this run, and since the last exchange
        self._step = -1  # the number of the last one
        self._staleness = 0
        self._evaluated_at = -1
        self._began_s = log.elapsed()
        self._evaluating_s = 0.0
        self._best = -1.0
        self._losses: list[float] = []

    def begin(self, rank: int) -> None:
        """Record the batches and the initial weights of this worker."""
        batches = self._batches
        weights = digest_of(self._learner)
        self._log.write(
            "begin", rank=rank, samples=batches.samples, batches=len(batches), weights=weights
        )
        self._codec_figures()  # measure the first push

    def stepped(self, epoch: int, step: int, result: StepResult) -> None:
        self._steps += 1
        self._step = step
        self._since += 1
        self._samples += result.weight
        self._staleness += result.staleness
        if not isnan(result.loss):
            self._losses.append(result.loss)
        if result.weight:
            self._log.write(
                "step",
                step=step,
                epoch=epoch,
                loss=result.loss,
                samples=int(result.weight),
                staleness=result.staleness,
                idle_s=round(self._client.idle_s, 6),
                bytes_sent=self._client.bytes_sent,
                bytes_received=self._client.bytes_received,
            )
        self.exchanged()
        if step % self._every == 0:
            self.evaluate(epoch, step)

    def epoch_done(self, epoch: int, step: int) -> None:
        self.exchanged()  # an epoch may end with a round
        self.evaluate(epoch, step)

    def exchanged(self) -> None:
        """Update the clock, and write this worker's state if the clock has a checkpoint."""
        client, strategy = self._client, self._strategy
        clock = client.clock if strategy.traits.uses_servers else strategy.clock
        if self._start_clock + clock != self.clock:
            self.clock, self._since = self._start_clock + clock, 0
        if self._states is not None:
            held = self._learner.module, self.state
            self._states.reached(client.view, clock, *held, self._step)

    def state(self) -> dict[str, Any]:
        """Return what this worker alone has: the strategy's state, and what codecs left out."""
        residuals = self._client.residuals()
        return {**self._strategy.state_dict(), **({RESIDUALS: residuals} if residuals else {})}

    def evaluate(self, epoch: int, step: int) -> None:
        if step == self._evaluated_at or not self._evaluates:
            return
        self._evaluated_at = step
        accuracy, _ = self._evaluate(epoch, step)
        self._best = max(self._best, accuracy)

    def _evaluate(self, epoch: int, step: int) -> tuple[float, float]:
        begin_s = self._log.elapsed()
        accuracy, loss = self._learner.evaluate(*self._test)
        seconds = self._log.elapsed() - begin_s
        self._evaluating_s += seconds
        found = {"accuracy": accuracy, "loss": loss, "seconds": round(seconds, 6)}
        self._log.write("eval", step=step, epoch=epoch, **found)
        for figures in self._codec_figures():
            self._log.write("codec", step=step, **msgspec.structs.asdict(figures))
        return accuracy, loss

    def _codec_figures(self) -> list[Any]:
        return [*self._client.codec_figures(), *self._strategy.codec_figures()]

    def finish(self, steps: int) -> dict[str, Any]:
        """Record the end, and return this worker's figures, with those of the final parameters."""
        client, seconds = self._client, self._log.elapsed() - self._began_s - self._evaluating_s
        self._log.write(
            "end",
            seconds=round(seconds, 6),
            idle_s=round(client.idle_s, 6),
            bytes_sent=client.bytes_sent,
            bytes_received=client.bytes_received,
        )
        accuracy, loss = self._evaluate(-1, steps)
        return {
            "accuracy": accuracy,
            "loss": loss,
            "best_accuracy": max(accuracy, self._best),
            "between_exchanges": self._strategy.traits.in_step and self._since > 0,
            "train_loss": float(np.mean(self._losses[-20:])) if self._losses else None,
            "samples": int(self._samples),
            "steps": self._steps,
            "seconds": seconds,
            "staleness": self._staleness / max(1, self._steps),
            "bytes_pushed": self._client.bytes_pushed,
            "bytes_pulled": self._client.bytes_pulled,
            "bytes_sent": self._client.bytes_sent,
            "bytes_received": self._client.bytes_received,
            "idle_s": self._client.idle_s,
        }


def digest_of(model: FlatParams) -> str:
    """Return a digest of a model's parameters, bit for bit."""
    digest = blake2b(digest_size=8)
    for _, values in sorted(model.values.items()):
        digest.update(values.detach().numpy().data)
    return digest.hexdigest()
