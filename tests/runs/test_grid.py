"""The cells of a grid: which values each strategy has, and what is refused."""

from pathlib import Path

import pytest

from shoal.errors import InvalidValue, UnknownName
from shoal.runs.grid import Comparison, comparison_from, comparison_of, dump_comparison
from shoal.runs.job_file import load_job
from shoal.runs.trust import code_of


def names(**values):
    return [cell.name for cell in Comparison(**values).cells()]


def test_every_combination_is_a_cell():
    grid = {"strategy": ["ssp"], "staleness": [0, 2], "workers": [2, 4]}
    assert names(grid=grid) == [
        "ssp workers=2 staleness=0",
        "ssp workers=2 staleness=2",
        "ssp workers=4 staleness=0",
        "ssp workers=4 staleness=2",
    ]


def test_an_axis_is_left_out_for_strategies_that_do_not_have_it():
    grid = {"strategy": ["sync", "ssp", "easgd", "allreduce"], "staleness": [0, 2]}
    grid |= {"set": {"tau": [4, 16], "easgd.beta": [0.5, 0.9]}, "servers": [1, 2]}
    cells = Comparison(grid=grid).cells()
    assert [cell.name for cell in cells if "allreduce" in cell.name] == ["allreduce"]
    assert [cell.name for cell in cells if "sync" in cell.name] == [
        "sync servers=1",
        "sync servers=2",
    ]
    assert "ssp servers=2 staleness=2" in [cell.name for cell in cells]
    easgd = [cell for cell in cells if "easgd" in cell.name]
    assert len(easgd) == 8
    assert easgd[-1].job(0, "").set == {"tau": 16, "beta": 0.9}


def test_codecs_of_pulls_are_left_out_where_there_are_no_servers():
    codecs = {"codec": ["none", "int:8"], "server_codec": ["fp16"]}
    cells = comparison_of({"grid": {"strategy": ["allreduce", "sync"], **codecs}}).cells()
    with_codec = [
        f"{name} codec={codec}" for name in ("allreduce", "sync") for codec in ("none", "int:8")
    ]
    assert [cell.name for cell in cells] == with_codec
    assert ["server_codec" in cell.fields for cell in cells] == [False] * 2 + [True] * 2


def test_an_axis_of_servers_is_left_out_where_the_settings_need_none():
    grid = {"servers": [1, 2], "set": {"exchange": ["servers", "allreduce"]}}
    cells = comparison_of({"job": {"strategy": "diloco"}, "grid": grid}).cells()
    assert [cell.name for cell in cells] == [
        "diloco servers=1 exchange=servers",
        "diloco exchange=allreduce",
        "diloco servers=2 exchange=servers",
    ]


@pytest.mark.parametrize("field", [{"pace": "1,2"}, {"jitter": 0.5}, {"batch_s": 3.0}])
def test_simulated_time_is_refused_for_real_processes(field):
    with pytest.raises(InvalidValue, match=f"{next(iter(field))}: real processes .*--simulated"):
        comparison_of({"simulation": field})


def test_settings_with_commas_between_them_have_the_same_value():
    grid = {"strategy": ["downpour", "easgd"], "set": {"tau,n_push,n_fetch": [1, 8]}}
    cells = Comparison(grid=grid).cells()
    assert [cell.name for cell in cells] == [
        *("downpour n_push=1", "downpour n_push=8", "easgd tau=1", "easgd tau=8"),
    ]
    assert cells[1].job(0, "").set == {"n_push": 8, "n_fetch": 8}
    assert cells[3].job(0, "").set == {"tau": 8}


def test_a_single_value_is_in_no_name():
    grid = {"strategy": ["easgd", "sync"], "workers": [3], "set": {"tau": [5]}}
    cells = Comparison(grid=grid).cells()
    assert [cell.name for cell in cells] == ["easgd", "sync"]
    assert [cell.job(0, "").workers for cell in cells] == [3, 3]
    assert [cell.job(0, "").set for cell in cells] == [{"tau": 5}, {}]


def test_fields_of_one_strategy_go_before_the_jobs():
    made = Comparison(
        job={"lr": 0.1, "set": {"tau": 3}},
        grid={"strategy": ["sync", "easgd"]},
        strategies={"easgd": {"lr": 0.5, "set": {"beta": 0.7}}},
    )
    sync, easgd = (cell.job(4, "here") for cell in made.cells())
    assert (sync.lr, sync.set, sync.seed, sync.out) == (0.1, {}, 4, "here")
    assert (easgd.lr, easgd.set) == (0.5, {"tau": 3, "beta": 0.7})


def test_seeds_begin_with_the_jobs():
    assert list(Comparison(job={"seed": 5}, seeds=3).seeds_of()) == [5, 6, 7]


def test_bandwidths_are_an_axis():
    cells = Comparison(grid={"bandwidth": [10, 100]}).cells()
    assert [(cell.name, cell.bandwidth) for cell in cells] == [
        ("sync bandwidth=10", 10.0),
        ("sync bandwidth=100", 100.0),
    ]


@pytest.mark.parametrize(
    ("values", "error", "told"),
    [
        ({"grid": {"staleness": [1, 2]}}, InvalidValue, "none of sync has 'staleness'"),
        ({"grid": {"set": {"tau": [1]}}}, InvalidValue, "none of sync has 'tau'"),
        ({"job": {"set": {"tau": 1}}}, InvalidValue, "none of sync has 'tau'"),
        (
            {"grid": {"strategy": ["easgd", "sync"], "set": {"esgd.tau": [1]}}},
            InvalidValue,
            "none of easgd, sync has 'esgd.tau'; did you mean 'easgd.tau'",
        ),
        ({"grid": {"speed": [1]}}, UnknownName, "unknown axis of a comparison 'speed'"),
        ({"grid": {"strategy": ["sinc"]}}, UnknownName, "unknown strategy 'sinc'"),
        ({"grid": {"strategy": []}}, InvalidValue, "axis 'strategy' of the comparison has no"),
        ({"grid": {"bandwidth": ["fast"]}}, InvalidValue, "'fast' is no number of Mbit/s"),
        ({"grid": {"bandwidth": [-1]}}, InvalidValue, "-1 is no number of Mbit/s"),
        ({"grid": {"strategy": [1]}}, InvalidValue, "expected a name, got 1"),
        ({"job": {"set": 3}}, InvalidValue, "job.set: expected a table"),
        ({"grid": {"set": [1]}}, InvalidValue, "grid.set: expected a table"),
        ({"grid": {"bandwidth": [True]}}, InvalidValue, "True is no number of Mbit/s"),
        ({"strategies": {"easgd": {}}}, InvalidValue, "the grid does not have this strategy"),
        ({"grid": {"lr": list(range(101)), "epochs": list(range(100))}}, InvalidValue, "10000 run"),
    ],
)
def test_a_wrong_grid_is_refused(values, error, told):
    with pytest.raises(error, match=told):
        Comparison(**values).cells()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"workers": 0}, "workers"),
        ({"epochs": "three"}, "epochs"),
        ({"wrokers": 1}, "unknown job field 'wrokers'"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields, told):
    with pytest.raises((InvalidValue, UnknownName), match=told):
        Comparison(job=fields).cells()[0].job(0, "")


def test_a_seed_that_is_no_number_is_refused():
    with pytest.raises(InvalidValue, match="seed"):
        Comparison(job={"seed": "one"}).seeds_of()


def test_options_go_before_the_file():
    file = {"job": {"workers": 4, "epochs": 1}, "grid": {"lr": [0.1], "set": {"tau": [1]}}}
    made = comparison_from(
        file,
        {
            "workers": [2, 3],
            "set": {"beta": [0.5]},
            "seeds": 2,
            "pace": "1,2",
            "epochs": 5,
            "simulated": True,
        },
    )
    assert made.grid == {"lr": [0.1], "set": {"tau": [1], "beta": [0.5]}, "workers": [2, 3], "epochs": 5}  # noqa: E501  # fmt: skip
    assert made.job == {}
    assert (made.seeds, made.simulation.pace) == (2, "1,2")


def test_some_of_a_files_strategies_can_be_chosen():
    file = {"grid": {"strategy": ["sync", "easgd"]}, "strategies": {"easgd": {"lr": 0.1}}}
    assert [cell.name for cell in comparison_from(file, {"strategy": ["sync"]}).cells()] == ["sync"]


def test_an_unknown_part_of_a_file_is_refused_by_name():
    with pytest.raises(UnknownName, match=r"'simulatoin' .*did you mean 'simulation'"):
        comparison_from({"simulatoin": {}}, {})


@pytest.mark.parametrize("file", [{"job": 5}, {"grid": 3}])
def test_a_part_that_is_no_table_is_refused(file):
    with pytest.raises(InvalidValue, match="expected a table"):
        comparison_from(file, {})


def test_two_cells_of_one_name_are_refused(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "examples" / "slowmo.py").read_text()
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue, match="two cells have the name 'SlowMo'"):
        names(grid={"strategy": ["one.py:SlowMo", "two.py:SlowMo"]})


def test_an_option_that_nothing_has_is_refused():
    with pytest.raises(UnknownName, match="unknown option of a comparison 'stratgy'"):
        comparison_from({}, {"stratgy": "sync"})


def test_a_comparison_is_read_as_it_was_written(tmp_path):
    made = comparison_from({}, {"strategy": ["sync", "bmuf"], "set": {"tau": [1, 2]}, "seeds": 3})
    path = tmp_path / "comparison.toml"
    path.write_text(dump_comparison(made))
    assert comparison_from(load_job(path), {}) == made


def test_the_order_of_axes_outlives_a_file(tmp_path):
    """TOML has tables such as `set` last."""
    made = comparison_from({}, {"strategy": ["easgd"], "set": {"tau": [2, 4]}, "workers": [1, 2]})
    path = tmp_path / "comparison.toml"
    path.write_text(dump_comparison(made))
    again = comparison_from(load_job(path), {})
    assert [cell.name for cell in again.cells()] == [cell.name for cell in made.cells()]


def test_cells_with_like_names_have_folders_of_their_own():
    made = Comparison(grid={"model": ["p/mods.py:small", "p-mods.py:small", "x" * 300 + ":small"]})
    folders = {cell.folder for cell in made.cells()}
    assert len(folders) == 3
    assert max(map(len, folders)) < 150


def test_an_axis_of_one_strategy_goes_before_a_general_one():
    grid = {"strategy": ["easgd", "bmuf"], "set": {"tau": [1, 2], "easgd.tau": [8, 16]}}
    assert names(grid=grid) == ["easgd tau=8", "easgd tau=16", "bmuf tau=1", "bmuf tau=2"]


def test_what_may_be_code_is_told_before_it_is_imported():
    made = Comparison(
        job={"data": "mine:data"},
        grid={"strategy": ["sync", "absent.py:Mine"], "model": ["nets:one"]},
        strategies={"other.py:Mine": {"model": "nets:two", "codec": {"*": "codecs.py:Mine"}}},
    )
    named = [code_of(each) for each in made.code()]
    assert {text for each in named for text in each.values()} == {
        *("mine:data", "absent.py:Mine", "nets:one", "nets:two", "other.py:Mine", "codecs.py")
    }


def test_names_of_cells_have_no_folders_where_files_are_told_apart():
    models = ["/one/nets.py:small", "/one/nets.py:large"]
    cells = Comparison(grid={"model": models}).cells()
    assert [cell.name for cell in cells] == ["sync model=nets.py:small", "sync model=nets.py:large"]
    alike = ["/one/nets.py:small", "/two/nets.py:small"]
    cells = Comparison(grid={"model": alike}).cells()
    assert [cell.name for cell in cells] == [f"sync model={each}" for each in alike]


def test_each_option_of_an_application_may_be_an_axis():
    grid = {"lr": [0.1, 0.2], "model": ["lr"], "workers": [1, 2]}
    cells = Comparison(application="ctr", job={"train": "a/b.csv"}, grid=grid).cells()
    assert [cell.name for cell in cells] == [
        *("lr=0.1 workers=1", "lr=0.1 workers=2"),
        *("lr=0.2 workers=1", "lr=0.2 workers=2"),
    ]
    assert cells[1].fields == {"train": "a/b.csv", "lr": 0.1, "model": "lr", "workers": 2}
    assert len({cell.folder for cell in cells}) == 4
    alike = Comparison(application="ctr", grid={"test": ["a/t.csv", "b/t.csv"]}).cells()
    assert [cell.name for cell in alike] == ["test=a/t.csv", "test=b/t.csv"]


def test_the_first_seed_is_that_of_one_run():
    assert Comparison(application="word2vec", seeds=2).seeds_of() == range(1, 3)
    assert Comparison(application="ctr").seeds_of() == range(1)


def test_a_comparison_of_an_application_is_named_after_its_data_and_read_again(tmp_path):
    made = Comparison(application="word2vec", job={"texts": ["a/b.txt", "c"]}, grid={"dim": [2, 3]})
    assert made.source == "a/b.txt"
    assert Comparison(application="ctr").source == "sample"
    path = tmp_path / "comparison.toml"
    path.write_text(dump_comparison(made))
    assert comparison_from(load_job(path), {}) == made


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"simulated": True}, "simulated time and .* belong to training jobs, not to ctr"),
        ({"strategies": {"sync": {}}}, "belong to training jobs"),
        ({"grid": {"lr": []}}, "'lr' of the comparison has no values"),
        ({"grid": {"lr": [0.1] * 1 + list(range(2, 102)), "l2": list(range(100))}}, "10000 runs"),
    ],
)
def test_a_comparison_of_an_application_that_cannot_be_done_is_refused(values, told):
    with pytest.raises(InvalidValue, match=told):
        Comparison(application="ctr", **values).cells()
