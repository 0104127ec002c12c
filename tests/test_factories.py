"""Users' files: executed once under a name of their own, and never trained with."""

import sys

import pytest

import shoal
from shoal.errors import NotImportable
from shoal.factories import load, load_definitions, load_module


def test_files_of_the_same_name_in_two_folders_are_two_modules(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "made.py").write_text(f"def what(): return {folder!r}\n")
    made = [load(f"{tmp_path / folder / 'made.py'}:what")() for folder in ("one", "two", "one")]
    assert made == ["one", "two", "one"]


def test_a_file_that_failed_is_executed_again(tmp_path):
    path = tmp_path / "failing.py"
    path.write_text("raise OSError('not yet')\n")
    with pytest.raises(NotImportable, match="OSError: not yet"):
        load_module(str(path))
    path.write_text("done = True\n")
    assert load_module(str(path)).done


@pytest.mark.parametrize(
    "call", ["shoal.init()", "shoal.connect('tcp://127.0.0.1:1')", "shoal.train(epochs=1)"]
)
def test_a_file_that_trains_at_its_top_level_is_refused(call, tmp_path):
    path = tmp_path / "unguarded.py"
    path.write_text(f"import shoal\n{call}\n")
    with pytest.raises(NotImportable, match=r"unguarded.py calls shoal\.(init|connect|train)\(\)"):
        load_module(str(path))
    assert shoal.nn  # and this process is not left as an importing one
    with pytest.raises(NotImportable, match="no file"):
        load_module(str(tmp_path / "absent.py"))


def test_definitions_are_loaded_with_the_arguments_of_the_script(tmp_path):
    path = tmp_path / "with_arguments.py"
    path.write_text("import sys\nwords = list(sys.argv)\n")
    before = list(sys.argv)
    load_definitions((str(path), "--lr", "3"))
    assert load_module(str(path)).words == [str(path), "--lr", "3"]
    assert sys.argv == before


def test_a_script_that_leaves_at_its_top_level_does_not_end_the_process(tmp_path):
    path = tmp_path / "leaving.py"
    path.write_text("raise SystemExit(2)\n")
    with pytest.raises(NotImportable, match="SystemExit: 2"):
        load_module(str(path))
