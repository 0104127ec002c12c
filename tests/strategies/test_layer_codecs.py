"""Which codec a layer gets, and jobs whose codecs are refused before anything starts."""

from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.codecs import codec_of
from shoal.errors import InvalidValue, NotImportable, UnknownName
from shoal.pytorch.flat_parameters import FlatParams
from shoal.runs.job import JobSpec
from shoal.strategies import StrategyOptions, strategies
from shoal.strategies.layer_codecs import check_codecs, code_in, registered, with_codecs
from shoal.tables.encoding import Encoding
from shoal.tables.spec import Span
from shoal.testing.codecs import CODEC_LAWS


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 4))


def codecs_of(module, codec, server_codec=""):
    names = {each: name for name, each in module.named_parameters()}
    model = FlatParams(module.parameters(), names=names)
    options = StrategyOptions(codec=codec, server_codec=server_codec)
    [spec] = strategies["sync"](options).tables(model)
    return spec, {span.name.split(" ")[0]: span.codec for span in spec.spans}


def test_vectors_and_small_parameters_have_none(module):
    spec, found = codecs_of(module, "int:8")
    assert spec.encodes
    assert found == {
        "0.weight": "int:8",
        "0.bias": "exact",
        "1.weight": "exact",
        "1.bias": "exact",
        "2.weight": "exact",  # 256 elements
        "2.bias": "exact",
    }


def test_the_first_pattern_that_fits_counts_also_for_small_ones(module):
    _, found = codecs_of(module, {"2.*": "fp16", "3": "bf16", "*.bias": "none", "*": "int:4"})
    assert list(found.values()) == ["int:4", "exact", "exact", "bf16", "fp16", "fp16"]


def test_what_no_pattern_fits_has_none(module):
    spec, found = codecs_of(module, {"0.bias": "fp16"})
    assert spec.encodes
    assert [*found.values()] == ["none", "fp16", "exact", "exact", "exact", "exact"]


def test_a_pattern_that_fits_nothing_is_refused_with_near_names(module):
    with pytest.raises(UnknownName, match=r"'0.wieght'.*0.weight"):
        codecs_of(module, {"0.wieght": "int:8", "*": "fp16"})


def test_layers_without_a_codec_for_pushes_may_have_one_for_pulls(module):
    spec, _ = codecs_of(module, {"2.weight": "int:8", "*": "none"}, "int:8")
    [fragment] = Encoding(spec.cut(1), pulled=True).cut(spec.keys)
    assert [piece.codec is not None for piece in fragment.pieces] == [
        True,
        *[False] * 3,
        True,
        False,
    ]


@pytest.mark.parametrize("codec", ["", "none", {}, {"*": "none"}])
def test_without_codecs_a_table_is_as_before(module, codec):
    spec, found = codecs_of(module, codec)
    assert not spec.encodes
    assert set(found.values()) <= {"", "none", "exact"}


def test_a_codec_for_pulls_leaves_the_same_layers_out(module):
    spec, found = codecs_of(module, "", "int:8")
    assert not spec.encodes
    assert spec.server_codec == "int:8"
    assert [*found.values()] == ["", "exact", "exact", "exact", "exact", "exact"]


def test_a_table_without_layers_has_one_codec():
    assert with_codecs((), "int:8") == {"codec": "int:8", "server_codec": "", "spans": ()}
    assert with_codecs((Span(0),), "int:8")["spans"] == (Span(0, "", "int:8"),)


def test_unknown_codecs_are_refused_with_near_names():
    with pytest.raises(UnknownName, match="onebit"):
        check_codecs("onebti")
    with pytest.raises(UnknownName, match="int"):
        check_codecs({"*": "itn:8"})
    with pytest.raises(InvalidValue, match="share"):
        check_codecs("topk:2")
    with pytest.raises(InvalidValue, match="no residual"):
        check_codecs("", "topk:0.1")
    check_codecs({"*": "none"}, "none")


OWN = Path(__file__).parents[2] / "examples" / "own_codec.py"


@pytest.mark.parametrize("law", CODEC_LAWS, ids=lambda law: law.__name__)
def test_a_codec_of_a_file_keeps_the_laws(law):
    law(codec_of(registered(f"{OWN}:FixedPoint:6")))


def test_codecs_of_files_are_named_as_they_are_registered():
    assert registered(f"{OWN}:FixedPoint:10") == "fixed:10"
    assert registered(f"topk:0.1+{OWN}:FixedPoint:after=5") == "topk:0.1+fixed:after=5"
    assert registered({"*.weight": f"{OWN}:FixedPoint", "*": "int:8"}) == {
        "*.weight": "fixed",
        "*": "int:8",
    }
    assert code_in({"0": f"{OWN}:FixedPoint+zlib", "*": "int:8"}) == (str(OWN),)
    assert registered("int:8") == "int:8"
    with pytest.raises(UnknownName):  # what a table names is not imported
        codec_of(f"{OWN}:FixedPoint:10")


def test_files_without_a_codec_are_refused(tmp_path):
    def file(name, *lines):
        path = tmp_path / name
        path.write_text("\n".join(["from shoal.codecs import FINE, Codec, codecs", *lines]))
        return path

    with pytest.raises(NotImportable, match="has no 'Missing'"):
        registered(f"{OWN}:Missing")
    with pytest.raises(NotImportable):
        registered(f"{tmp_path}/nothing.py:Mine")
    with pytest.raises(InvalidValue, match="is no codec"):
        registered(f"{file('one.py', 'class Mine: pass')}:Mine")
    mine = "class Mine(Codec, frozen=True): name = 'mine'"
    with pytest.raises(InvalidValue, match=r"codecs\.add\(Mine\.name, Mine\)"):
        registered(f"{file('two.py', mine)}:Mine")


def test_powersgd_is_for_sums_over_the_workers():
    check_codecs("powersgd:2", summed=True)
    with pytest.raises(InvalidValue, match="powersgd:2' is for sums over the workers"):
        check_codecs("powersgd:2")
    with pytest.raises(InvalidValue, match="rank"):
        check_codecs("powersgd:0", summed=True)


@pytest.mark.parametrize("strategy", ["allreduce", "p2p"])
def test_strategies_without_servers_have_no_pulls_to_encode(strategy):
    job = JobSpec(strategy=strategy, server_codec="fp16")
    with pytest.raises(InvalidValue, match="leave out server_codec 'fp16'"):
        strategies[strategy](job.strategy_options(1))
    strategies[strategy](JobSpec(strategy=strategy, server_codec="none").strategy_options(1))
