"""Options of runs: what all of them have by default, and how they are written as words."""

import msgspec
import pytest

from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.script_job import ScriptRun
from shoal.apps.word2vec.spec import WordsSpec
from shoal.client.options import ClientOptions
from shoal.engines.options import KEPT, ServerRole, words_for
from shoal.runs.job import JobSpec

RUNS = [JobSpec, ScriptRun, CtrSpec, WordsSpec]


@pytest.mark.parametrize("schema", [*RUNS, ServerRole], ids=lambda each: each.__name__)
def test_few_checkpoints_are_kept_unless_all_are_asked_for(schema):
    assert schema().keep_checkpoints == KEPT == 5
    assert schema(keep_checkpoints=0).keep_checkpoints == 0


def test_every_option_of_a_script_has_words_that_give_it():
    from shoal.cli.cluster import run
    from shoal.cli.group import plain

    how = ScriptRun(
        workers=3,
        memory="2GiB",
        checkpoint_every_s=0.5,
        imports=("a b.py", "c"),
        strategy="diloco",
        set={"tau": 5, "mode": "async"},
        optimizer_options={"betas": [0.8, 0.9], "lr": 0.1},
        output="all",
    )
    words = words_for(how, ScriptRun.__struct_fields__)
    given = run.make_context("run", [*words, __file__]).params
    assert msgspec.convert(plain(given, ScriptRun), ScriptRun) == how


def test_processes_get_the_options_of_all_runs_by_name():
    asked = {"memory": "2GiB", "checkpoint_every": 7, "drop_messages": "10"}
    run = WordsSpec(threads=3, sync_timeout_s=2.5, out="here", **asked)
    assert run.shared_with(ServerRole) == {
        **asked,
        "keep_checkpoints": KEPT,
    }  # neither the threads of word2vec's workers, nor the folder of runs
    shared = run.shared_with(ClientOptions)
    assert shared == {
        "sync_timeout_s": 2.5,
        "on_timeout": "ask",
        "collective": "ring",
        "drop_messages": "10",
    }
