"""Packages of extras: each is named where it is missing, before anything is done or written."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli import main
from shoal.data.catalogue import find_source
from shoal.errors import PackageMissing
from shoal.extras import EXTRAS, NAMES, require

ROOT = Path(shoal.__file__).parent
PROJECT = tomllib.loads((ROOT.parent.parent / "pyproject.toml").read_text())["project"]
TABLE = "label,city\n1,a\n0,b\n"


@pytest.fixture
def missing(monkeypatch):
    """Call it with a package that is then not installed."""

    def hide(package):
        for name in [each for each in sys.modules if each.partition(".")[0] == package]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


def packages_of(lines):
    return {line.partition(">")[0] for line in lines if not line.startswith("shoal[")}


def test_the_extras_of_the_project_have_these_packages():
    extras = PROJECT["optional-dependencies"]
    for extra in ("data", "reports", "bench", "mpi", "tls", "ray", "codecs"):
        ours = {NAMES.get(each, each) for each, name in EXTRAS.items() if name == extra}
        assert ours == packages_of(extras[extra])
    assert extras["all"] == ["shoal[data,reports,bench,mpi,tls,ray,codecs]"]
    assert not packages_of(PROJECT["dependencies"]) & {NAMES.get(each, each) for each in EXTRAS}


def imported_at_once(tree):
    """The packages that a module imports when it is imported itself."""
    found, nodes = set(), [*tree.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.ClassDef | ast.Try):
            nodes += node.body
        elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            nodes += [*node.body, *node.orelse]
    return found


def test_no_module_imports_a_package_of_an_extra_before_it_is_used():
    for path in ROOT.rglob("*.py"):
        assert not imported_at_once(ast.parse(path.read_text())) & EXTRAS.keys(), path


@pytest.mark.parametrize("source", ["import scipy.sparse", "class A:\n    from PIL import Image"])
def test_an_import_before_use_is_found(source):
    assert imported_at_once(ast.parse(source)) & EXTRAS.keys()


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_named_with_its_extra(package, missing):
    missing(package)
    with pytest.raises(PackageMissing, match=f"this needs {NAMES.get(package, package)}") as raised:
        require(f"{package}.part", "this")
    assert f"pip install 'shoal[{EXTRAS[package]}]'" in raised.value.message


def test_a_package_that_lacks_one_of_its_own_is_not_taken_for_missing(monkeypatch, tmp_path):
    (tmp_path / "jinja2.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [each for each in sys.modules if each.partition(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        require("jinja2", "this")


COMMANDS = {
    "sklearn": "train ctr --out runs",
    "scipy": "train word2vec --similarities pairs.tsv --out runs",
    "pyarrow": "train ctr rows.csv --out runs",
    "plotly": "compare digits --strategy sync,asgd --out runs",
    "jinja2": "compare digits --strategy sync,asgd --out runs",
    "matplotlib": "bench wire --plot runs",
}


@pytest.mark.parametrize("package", COMMANDS)
def test_a_command_says_what_to_install_and_leaves_nothing(package, missing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(TABLE)
    Path("pairs.tsv").write_text("cat\tdog\t5.0\n")
    missing(package)
    result = CliRunner().invoke(main, COMMANDS[package].split())
    assert result.exit_code == 2, result.output
    assert f"pip install 'shoal[{EXTRAS[package]}]'" in " ".join(result.output.split())
    assert not Path("runs").exists()


def test_digits_say_what_to_install(missing):
    missing("sklearn")
    with pytest.raises(PackageMissing, match=r"digits.* needs scikit-learn.*shoal\[data\]"):
        find_source("digits").load([])


@pytest.mark.parametrize("package", ["plotly", "jinja2", "matplotlib"])
def test_a_report_writes_nothing_without_what_draws_it(package, missing, tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    missing(package)
    words = [
        "report",
        str(tmp_path),
        "--csv",
        str(tmp_path / "csv"),
        "--svg",
        str(tmp_path / "svg"),
    ]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    assert "pip install 'shoal[reports]'" in " ".join(result.output.split())
    assert [each.name for each in tmp_path.iterdir()] == ["events.jsonl"]


def test_packages_of_public_names_are_loaded_by_attribute():
    code = "import shoal; print(shoal.tables.Access, shoal.pytorch.FlatParams, shoal.errors)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "shoal.tables.spec.Access" in done.stdout
