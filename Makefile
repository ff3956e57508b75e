# Each target sets up all it needs in .venv; Python >= 3.11, pip and make are enough.
#   make demo    teach a unit one bit and test its memory up to a million steps
#   make test    all tests      make check   lint, format, types
#   make bench   speed on this CPU, into benchmarks/results/cpu.json

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check bench clean

demo: .venv/experiments
	$(BIN)/multistable demo

test: .venv/dev
	$(BIN)/python -m pytest

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/experiments
	$(BIN)/multistable bench --device cpu

clean:
	rm -rf .venv

.venv/bin/python:
	$(PYTHON) -m venv .venv

# A stamp per set of packages, made anew when what it names changes.
.venv/experiments: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[experiments]'
	touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[dev]'
	touch $@ .venv/experiments
