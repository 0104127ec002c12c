"""The conformance suite takes a strategy of a user's, and finds what is wrong with others."""

import pytest
import torch

from shoal.errors import InvalidValue
from shoal.protocol.requests import Exchange
from shoal.strategies import strategies
from shoal.strategies.allreduce import AllReduceSGD
from shoal.strategies.servers import Sync
from shoal.testing import strategies as suite

SLOWMO = "examples/slowmo.py:SlowMo"


@pytest.mark.parametrize("law", suite.STRATEGY_LAWS, ids=lambda law: law.__name__)
def test_the_example_holds_every_law(law):
    law(strategies[SLOWMO])


class Wrong(Sync):
    name, summary = "wrong", "pushes nothing"

    def _exchange(self, model, weight):
        return Exchange((), advance=True, pulls=self._ops.pulls)


class KeepsItsOwn(Sync):
    name, summary = "own", "pulls nothing at its end"

    def end(self, model):
        yield from super().end(model)
        model.values["x"].add_(self.options.rank)


class Moody(Sync):
    name, summary = "moody", "draws numbers that no seed gives"

    def step(self, model, batch):
        found = yield from super().step(model, batch)
        model.values["x"].add_(torch.rand(3, dtype=torch.float64) * 1e-6)
        return found

    def end(self, model):
        yield from ()


class Forgetful(Sync):
    name, summary = "forgetful", "has a state that it cannot take back"

    def state_dict(self):
        return {"something": 1}


class Uncounted(AllReduceSGD):
    name, summary = "uncounted", "has no servers, and does not count its exchanges"

    def step(self, model, batch):
        found = yield from super().step(model, batch)
        self.clock = 0
        return found


@pytest.mark.parametrize(
    ("kind", "law", "error"),
    [
        (Wrong, suite.reaches_the_minimum, AssertionError),
        (KeepsItsOwn, suite.ends_with_equal_parameters, AssertionError),
        (Moody, suite.a_seed_gives_one_run, AssertionError),
        (Forgetful, suite.its_state_is_restored, InvalidValue),
        (Uncounted, suite.says_what_it_is, AssertionError),
    ],
)
def test_a_wrong_strategy_is_found_by_the_law_for_it(kind, law, error):
    with pytest.raises(error, match=kind.name):
        law(kind)
