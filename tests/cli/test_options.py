"""Options of the command line are made of schemas: one declaration, one format of help."""

import re
from typing import get_type_hints

import click
import msgspec
import pytest
from click.testing import CliRunner

from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.script import ScriptRun
from shoal.apps.word2vec.spec import WordsSpec
from shoal.cli import main
from shoal.cli.group import SECTIONS, given, options_of
from shoal.cli.tools import CHAOS
from shoal.engines.options import SchedulerRole, ServerRole, WorkerRole
from shoal.runs.job import JobSpec

SCHEMAS = {
    "train": JobSpec,
    "train ctr": CtrSpec,
    "train word2vec": WordsSpec,
    "run": ScriptRun,
    "scheduler": SchedulerRole,
    "server": ServerRole,
    "worker": WorkerRole,
    "chaos": JobSpec,
}
OPTIONS = [
    (name, each)
    for name, command in main.commands.items()
    for each in command.params
    if isinstance(each, click.Option) and not each.hidden
]


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=lambda each: getattr(each, "name", each))
def test_every_option_has_a_plain_help_text_under_a_heading(name, option):
    assert option.help
    assert re.match(r"[\w.]", option.help), "a help text stands alone"
    assert not option.help.startswith("...")
    assert not option.help.endswith(".")
    assert "[" not in option.help, "click shows defaults"
    assert option.section in SECTIONS


@pytest.mark.parametrize(("name", "schema"), SCHEMAS.items(), ids=SCHEMAS)
def test_defaults_that_are_shown_are_those_of_the_schema(name, schema):
    usual = CHAOS if name == "chaos" else {}
    options = {each.name: each for each in main.commands[name].params}
    checked = 0
    for field in msgspec.structs.fields(schema):
        option = options.get(field.name)
        if isinstance(option, click.Option) and not option.required and not option.multiple:
            expected = usual.get(field.name, field.default)
            assert option.default == expected, field.name
            assert bool(option.show_default) == (expected not in (None, "", -1)), field.name
            checked += 1
    assert checked >= 7


@pytest.mark.parametrize(("name", "schema"), SCHEMAS.items(), ids=SCHEMAS)
def test_every_field_with_a_help_text_can_be_given(name, schema):
    given = {each.name for each in main.commands[name].params}
    described = {
        each
        for each, hint in get_type_hints(schema, include_extras=True).items()
        if hasattr(hint, "__metadata__")
    }
    left_out = {"layers"} | ({"data", "on_worker_loss"} if name == "chaos" else {"data"})
    left_out = left_out if schema is JobSpec else set()
    assert described - left_out == described & given - left_out


def test_chaos_help_shows_the_cluster_that_it_starts():
    text = " ".join(CliRunner().invoke(main, ["chaos", "--help"]).output.split())
    assert "--workers INTEGER RANGE worker processes [default: 3; 1<=x<=1024]" in text
    assert re.search(r"--servers INTEGER RANGE [^\[]*\[default: 3; ", text)
    assert re.search(r"--replicas INTEGER RANGE [^\[]*\[default: 2; ", text)


def test_old_names_are_gone():
    names = {name for _, option in OPTIONS for name in option.opts}
    assert not names & {
        "--menu", "--settles", "--silence-s", "--alone-s", "--sync-timeout-ms", "--init-timeout",
        "--join-timeout",
    }  # fmt: skip


def test_only_what_the_user_gave_overrides_a_file():
    seen = {}

    @click.command()
    @options_of(JobSpec, leave_out=("layers", "data"))
    def probe(**options):
        seen.update(given())

    CliRunner().invoke(probe, ["--workers", "2", "--optimizer-option", "beta1=0.5"])
    assert seen == {"workers": 2, "optimizer_options": ("beta1=0.5",)}


def test_help_has_headings():
    text = CliRunner().invoke(main, ["train", "--help"]).output
    places = [text.index(f"\n{name}:\n") for name in SECTIONS if f"\n{name}:\n" in text]
    assert len(places) >= 8
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "words", "wrong"),
    [
        (name, words, option)
        for name, option in OPTIONS
        for words in [[option.opts[-1], "-7"]]
        if getattr(option.type, "min", None) is not None
    ],
    ids=lambda each: getattr(each, "name", each if isinstance(each, str) else ""),
)
def test_a_number_out_of_its_range_is_refused_with_the_flag_as_it_was_typed(name, words, wrong):
    ended = CliRunner().invoke(main, [*name.split(), *words])
    assert ended.exit_code == 2
    assert f"Invalid value for '{words[0]}': -7" in ended.output


def test_ranges_are_those_of_the_schema():
    checked = 0
    for name, schema in SCHEMAS.items():
        options = {each.name: each for each in main.commands[name].params}
        for field, hint in get_type_hints(schema, include_extras=True).items():
            meta = getattr(hint, "__metadata__", (None,))[0]
            kind = getattr(options.get(field), "type", None)
            if meta is not None and kind is not None and (meta.ge, meta.gt) != (None, None):
                assert kind.min == (meta.ge if meta.gt is None else meta.gt), field
                assert kind.min_open == (meta.gt is not None)
                assert kind.max == meta.le
                checked += 1
    assert checked > 50
