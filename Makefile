# `make run` and `make test` set up everything they need; the rest builds on the same virtual environment.
VENV   ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN     = $(VENV)/bin
RUN     = $(BIN)/python -m
PYTEST  = $(RUN) pytest
UI_TESTS ?= tests/ui

.DEFAULT_GOAL := help
.PHONY: help run test test-ui test-full check ui bench bench-billion clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.run-installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing packages (about 2.3 GB; the first time some minutes)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.run-installed

$(VENV)/.ui-installed: $(VENV)/.dev-installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,ui]'
	@touch $@

run: $(VENV)/.run-installed  ## Train the demo graph: the whole pipeline on embedded defaults
	$(BIN)/garden run demo

ui: $(VENV)/.run-installed  ## Start the Prefect and MLflow servers and serve the flows (Ctrl-C stops them)
	$(BIN)/garden up

check: $(VENV)/.dev-installed  ## Lint, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(RUN) mypy
	$(BIN)/lint-imports

test: check  ## Checks, then a sample of every kind of test
	$(PYTEST) -m "not full" -n 2 --dist loadfile

test-ui: $(VENV)/.ui-installed  ## Use the servers as a person does: browser, schedules, failures
	$(PYTEST) $(UI_TESTS)

test-full: check  ## Every test, the long repetitions too
	$(PYTEST)

bench: $(VENV)/.dev-installed  ## Run the benchmarks and write tests/benchmarks/results
	$(RUN) tests.benchmarks.run_all

bench-billion: $(VENV)/.dev-installed  ## A graph of 1.07G edges within 2 GB of memory: a quarter of an hour, and 45 GB of disk
	$(RUN) tests.benchmarks.bench_billion

clean:  ## Remove the virtual environment, caches and the state of `make run`
	rm -rf $(VENV) .garden .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
