"""Streaming DiLoCo: fragments in turn, while steps go on."""

from contextlib import suppress
from itertools import pairwise

import pytest
import torch

from shoal.errors import InvalidValue
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Start
from shoal.simulation.network import NetworkOptions
from shoal.strategies import StrategyOptions, strategies
from shoal.tables.spec import Access
from tests.strategies.problems import around, smooth, train

SMALL = Access("sgd", {"lr": 0.05})
OUTER = {"outer_lr": 0.7, "outer_momentum": 0.5}


def test_one_fragment_without_overlap_is_diloco():
    batches = around(3, 23, spread=1.0)
    whole = train("diloco", batches, smooth, SMALL, epochs=2, tau=5, **OUTER)
    settings = {"tau": 5, "fragments": 1, "overlap": 0, **OUTER}
    streamed = train("streaming_diloco", batches, smooth, SMALL, epochs=2, **settings)
    for one, other in zip(whole, streamed, strict=True):
        assert [each.loss for each in one.results] == [each.loss for each in other.results]


def test_a_fragment_follows_the_papers_recursion():
    """One worker, plain gradient descent on a quadratic, two fragments, overlap of one step."""
    scales = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    centre = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
    lr, mixing, momentum, outer_lr = 0.05, 0.5, 0.5, 0.7
    x, outer = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    velocity = torch.zeros(3, dtype=torch.float64)
    parts, sent, losses = (slice(0, 2), slice(2, 3)), None, []
    for step in range(1, 13):
        if sent is not None and (step - 1) % 2 == 1:  # one step has been taken since
            x[sent] = mixing * x[sent] + (1 - mixing) * outer[sent]
            sent = None
        losses.append(float((scales * (x - centre) ** 2).sum() / 2))
        x -= lr * scales * (x - centre)
        if step % 2 == 0:
            sent = parts[(step // 2 - 1) % 2]
            moved = outer[sent] - x[sent]
            velocity[sent] = momentum * velocity[sent] + moved
            outer[sent] -= outer_lr * (moved + momentum * velocity[sent])
    settings = {"tau": 4, "fragments": 2, "mixing": mixing, **OUTER}
    (worker,) = train("streaming_diloco", around(1, 12), access=SMALL, **settings)
    assert [each.loss for each in worker.results[:12]] == pytest.approx(losses, rel=1e-12)


def test_at_most_a_fragment_is_under_way_and_steps_do_not_wait_for_it():
    """400 kB at 1 MB/s: the whole takes longer than a step, a quarter of it does not."""
    network = NetworkOptions(jitter_s=0.0, host_bandwidth=1e6, bandwidth=1e12, link_bytes=1 << 40)
    batches = [[torch.zeros(1, dtype=torch.float64)] * 80] * 2
    taken, peaks = {}, {}
    for name, settings in (
        ("diloco", {"tau": 20}),
        ("streaming_diloco", {"tau": 20, "fragments": 4, "overlap": 4}),
    ):
        clients: dict[int, list[int]] = {}

        class Watch:
            def __init__(self, client, into=clients):
                self.client, self.sent = client, into.setdefault(len(into), [])

            def stepped(self, *_):
                self.sent.append(self.client.bytes_sent)

            def exchanged(self): ...

            def epoch_done(self, *_): ...

        workers = train(
            name, batches, lambda x, batch: (x * x).sum(), SMALL, batch_s=0.2, size=50_000,
            network=network, watched=Watch, **settings
        )  # fmt: skip
        taken[name] = workers[0].times[79] - workers[0].times[0]
        peaks[name] = max(b - a for sent in clients.values() for a, b in pairwise(sent))
    assert peaks["streaming_diloco"] <= 0.3 * peaks["diloco"]
    assert taken["streaming_diloco"] < 79 * 0.2 + 0.1
    assert taken["diloco"] > 79 * 0.2 + 2


def test_parameters_that_are_spread_are_the_writers():
    """With an exchange under way, and steps that were not exchanged: nothing of them is left."""
    (worker,) = train("streaming_diloco", around(1, 1), access=SMALL, tau=4, fragments=2)
    strategy, model = worker.strategy, worker.model

    def drive(program, answer):
        asked, value = [], None
        with suppress(StopIteration):
            while True:
                asked.append(program.send(value))
                value = answer(asked[-1])
        return asked

    settled = Outcome(round_weight=1.0, clock=9)
    answer = lambda request: 7 if isinstance(request, Start) else settled  # noqa: E731
    for _ in range(2):
        drive(strategy.step(model, around(1, 1)[0][0]), answer)
    assert strategy._under_way is not None
    model.x.fill_(100.0)
    drive(strategy.spread(model, True), answer)
    assert torch.equal(model.x, torch.full_like(model.x, 100.0))
    assert not any(strategy._owed)
    exchanges = [each.request for each in drive(strategy.settle(model), answer) if isinstance(each, Start)]  # noqa: E501  # fmt: skip
    assert len(exchanges) == 2
    assert not any(each.pushes for each in exchanges)


def test_a_run_with_other_fragments_is_not_continued():
    (worker,) = train("streaming_diloco", around(1, 8), access=SMALL, tau=4, fragments=2)
    state = worker.strategy.state_dict()
    (other,) = train("streaming_diloco", around(1, 8), access=SMALL, tau=4, fragments=1)
    other.strategy.load_state_dict(state)
    with pytest.raises(InvalidValue, match="had 2 fragments, and not 1: resume it with as many"):
        other.strategy._continue(other.model)


def test_what_was_not_exchanged_is_exchanged_at_the_end():
    """Three steps of one worker, and tau of 8: the parameters have come as far as the steps."""
    settings = {"tau": 8, "fragments": 2, "outer_lr": 1.0, "outer_momentum": 0.0}
    (worker,) = train("streaming_diloco", around(1, 3), access=SMALL, **settings)
    (plain,) = train("sync", around(1, 3), access=SMALL)
    assert torch.allclose(worker.model.x, plain.model.x, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tau": 10, "fragments": 4}, "tau 10 .* is no multiple of its 4 fragments"),
        ({"tau": 8, "fragments": 4, "overlap": 2}, "has to be less than tau / fragments = 2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, told):
    with pytest.raises(InvalidValue, match=told):
        strategies["streaming_diloco"](StrategyOptions(settings=settings))


@pytest.mark.parametrize("number", [-1, 1])
def test_a_fragment_that_is_under_way_is_in_the_state(number):
    settings = {"tau": 4, "fragments": 2}
    (worker,) = train("streaming_diloco", around(1, 12), access=SMALL, **settings)
    state = {**worker.strategy.state_dict(), "under_way": number}
    worker.strategy.load_state_dict(state)
    assert worker.strategy.state_dict()["under_way"] == number
