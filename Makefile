# `make demo` and `make test` each set up everything they need in a fresh clone.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests run on as many processes as there are cores, at most 8: those that start a cluster have
# about five processes each. One thread for each test's torch: its others would only wait in turns.
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadgroup --durations 30

.PHONY: demo test test-fast coverage lint types check clean venv
.DEFAULT_GOAL := help

help:
	@echo "make demo   train on handwritten digits: 2 workers, 2 servers, on this machine"
	@echo "make test-fast  run the tests without real processes and many seeds"
	@echo "make test   run the test suite"
	@echo "make coverage   run the test suite under coverage.py, and print a table by folder"
	@echo "make check  lint, types and tests, as CI does"
	@echo "make docs   build the documentation into docs/_build/index.html"
	@echo "make docs-check   run every code block of README and the documentation in a fresh clone"

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "shoal: no '$(PYTHON)' on PATH. Install Python 3.11 or newer, or name one: make demo PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "shoal: $$($(PYTHON) --version) is too old; Shoal needs Python 3.11 or newer. Name one: make demo PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "shoal: $(PYTHON) cannot make a virtual environment (on Debian: apt install python3-venv)"; exit 1; }
	@echo "shoal: setting up $(VENV) (about a minute, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' 2> >(grep -v 'is ignored: it is neither a file nor a directory' >&2)
	@touch $(READY)
	@echo "shoal: $(VENV) is ready"

demo: $(READY)
	@$(BIN)/shoal train digits --workers 2 --servers 2 --strategy sync --epochs 30 --batch-size 32 --title demo --next-steps

test: $(READY)
	@echo "shoal: running the tests (some 20 minutes on two cores)"
	@$(TESTS)

test-fast: $(READY)
	@$(TESTS) -m "not real and not seeds"

# Processes that tests start are measured too. WHAT='-m "not real"' measures a part.
coverage: $(READY)
	@rm -f .coverage .coverage.*
	@OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -q -n auto --maxprocesses 8 --dist loadgroup $(WHAT)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python tests/coverage_table.py

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

# The documentation's tools are installed into the same environment when they are first needed.
DOCS_READY := $(VENV)/.docs-ready
.PHONY: docs docs-check docs-clean

$(DOCS_READY): pyproject.toml constraints.txt $(READY)
	@echo "shoal: installing what builds the documentation into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]' 2> >(grep -v 'is ignored: it is neither a file nor a directory' >&2)
	@touch $(DOCS_READY)

docs: $(DOCS_READY)
	@$(BIN)/sphinx-build --quiet --fresh-env --write-all --fail-on-warning --keep-going --jobs auto docs docs/_build
	@echo "shoal: the documentation is in docs/_build/index.html"

docs-check: $(READY)
	@$(BIN)/python tests/docs/run_blocks.py --fresh

clean: docs-clean
docs-clean:
	rm -rf docs/_build

types: $(READY)
	@$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache shoal-runs
