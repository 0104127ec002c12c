"""Tests mirror the modules: src/shoal/a/b.py, or a folder b/ there, has tests/a/test_b.py."""

from pathlib import Path

import pytest

import shoal

TESTS, SOURCE = Path(__file__).parent, Path(shoal.__file__).parent
# About more than one module: the tree's shape, real processes, and what several modules agree on.
CROSS_CUTTING = {
    "apps/test_ctr_runs.py",
    "cli/test_options.py",
    "docs",
    "protocol/scheduler/test_records.py",
    "protocol/server",
    "protocol/test_sparse.py",
    "real",
    "simulation/test_planted.py",
    "simulation/test_transcripts.py",
    "storage/test_resuming.py",
    "strategies/test_equivalence.py",
    "strategies/test_minima.py",
    "tables/test_replicas.py",
    "test_architecture.py",
    "test_damaged_files.py",
    "test_doctests.py",
    "test_examples.py",
    "test_exchange_path.py",
    "test_run_path.py",
    "test_mirror.py",
    "test_one_writer.py",
    "test_ported.py",
    "test_texts.py",
    "test_zygote.py",
    "transport/test_conformance.py",
}
FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))


def is_cross_cutting(path: Path) -> bool:
    return any(str(each) in CROSS_CUTTING for each in (path, *path.parents))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_test_file_has_its_module(path):
    subject = SOURCE / path.parent / path.stem.removeprefix("test_")
    found = subject.with_suffix(".py").is_file() or (subject / "__init__.py").is_file()
    assert found or is_cross_cutting(path), f"no {subject}.py: move it, or list it as cross-cutting"


def test_the_list_of_cross_cutting_tests_has_no_stale_entry():
    assert not {each for each in CROSS_CUTTING if not (TESTS / each).exists()}


@pytest.mark.parametrize("path", sorted((TESTS / "real").glob("test_*.py")), ids=lambda p: p.name)
def test_tests_with_real_processes_are_marked(path):
    assert "pytest.mark.real" in path.read_text()


@pytest.mark.xdist_group("together")
def test_a_group_of_tests_is_run_by_one_process(request):
    grouped = getattr(request.config.option, "loadgroup", False)  # set by xdist in its processes
    assert request.node.nodeid.endswith("@together") == grouped
