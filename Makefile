# Each target sets up all it needs in .venv; Python >= 3.11, pip and make are enough.
#   make demo    teach three layers to remember, test how long they do, and draw it: ends in demo/index.html
#   make test    the tests      make test-all   and those that need more    make test-gpu   those that need a GPU
#   make check   lint, format, types, imports
#   make bench   speed on this CPU, into experiments/benchmarks/results/cpu.json

PYTHON ?= python3
BIN := .venv/bin
KERNEL_TESTS := tests/ops/test_triton.py tests/ops/test_triton_operators.py
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-gpu check bench clean

demo: .venv/experiments
	$(BIN)/multistable demo

# A file stays in one process, with what its fixtures made.
test: .venv/dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile experiments
	TRITON_INTERPRET=1 $(BIN)/python -m pytest --numprocesses 2 $(KERNEL_TESTS)

# On a machine with a GPU: takes its python3, torch, Triton and pytest as they are, and installs nothing.
test-gpu:
	$(PYTHON) -m pytest $(KERNEL_TESTS) tests/ops/test_triton_gpu.py tests/dynamics/test_hysteresis_gpu.py
	$(PYTHON) -m pytest experiments/tests/training/test_training_gpu.py

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: .venv/experiments
	$(BIN)/multistable bench --device cpu

clean:
	rm -rf .venv

.venv/bin/python:
	$(PYTHON) -m venv .venv

# One stamp file per set of packages; they are installed again when the files that name them change.
.venv/experiments: pyproject.toml experiments/pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable . --editable ./experiments
	touch $@

.venv/dev: pyproject.toml experiments/pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[dev]' --editable './experiments[distributed]'
	touch $@ .venv/experiments
