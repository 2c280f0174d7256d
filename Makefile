# `make demo` and `make test` work from nothing: they need python3, make and a C++ compiler.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml constraints.txt

# torch 2.13 prints two lines to stderr for every profiler session otherwise.
export KINETO_LOG_LEVEL ?= 99

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types docs wheel venv clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.demo ## train a GCN on a generated, Cora-sized graph and show where its time goes
	$(BIN)/python benchmark/demo.py

test: $(VENV)/.test ## run the whole test suite
	$(BIN)/python -m pytest

check: lint types test docs ## everything a contributor runs before a commit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev ## build the documentation, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs/source docs/_build/html
	@echo "docs/_build/html/index.html"

wheel: $(VENV)/.dev ## build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

venv: $(VENV)/.dev ## make .venv with everything a contributor needs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python $(SOURCES)
	$(PIP) -e ".[pyg]"
	@touch $@

$(VENV)/.test: $(VENV)/.demo $(SOURCES)
	$(PIP) -e ".[pyg,test]"
	@touch $@

$(VENV)/.dev: $(VENV)/.test $(SOURCES)
	$(PIP) -e ".[pyg,test,docs,dev]"
	@touch $@

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist docs/_build docs/source/generated out src/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache
