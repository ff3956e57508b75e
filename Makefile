# Each target installs what it needs into .venv; all it takes is Python >= 3.11 with pip, and make.
#   make demo       train three layers to remember, test for how long they do, and write demo/index.html
#   make test       the tests of the library and of the experiments
#   make test-all   the same, and those that need large optional dependencies (ONNX Runtime, accelerate) or take long
#   make test-gpu   the tests that need a GPU
#   make check      lint, format, types, imports
#   make mutants    break the code on purpose, 350 times: at least 97 % must make a test fail (an hour)
#   make docs       the site, into build/site/index.html
#   make explorer   the explorer alone, build/explorer.html: one page to feel a bistable unit
#   make bench      speed on this CPU, into experiments/benchmarks/results/cpu.json
#   make bench-commits BASE=main    compare the speed of HEAD with that of another commit (asv); 20 % slower fails

PYTHON ?= python3
BASE ?= HEAD~1
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# A test that hangs fails after 15 minutes; the slowest take a tenth of that.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
GPU_TESTS := $(wildcard tests/*/test_*_gpu.py tests/ops/*/test_*_gpu.py experiments/tests/*/test_*_gpu.py)
KERNEL_TESTS := $(filter-out %_gpu.py,$(wildcard tests/ops/triton/test_*.py))
RUN_KERNELS := $(shell grep --files-with-matches gpu_kernels $(KERNEL_TESTS))

.PHONY: demo test test-all test-gpu check docs explorer mutants bench bench-commits clean

demo: .venv/experiments
	$(BIN)/multistable demo

# All tests of a file run in one process, which shares their fixtures. Triton's interpreter has to be chosen before
# Triton is imported, so the tests that run kernels have processes of their own.
test: CHOSEN := -m "not extra"
test test-all: .venv/dev
	$(PYTEST) --dist loadfile $(CHOSEN)
	TRITON_INTERPRET=1 $(PYTEST) $(CHOSEN) $(RUN_KERNELS)

# Uses the python3, torch, Triton and pytest of the machine, and installs nothing.
test-gpu:
	$(PYTHON) -m pytest $(KERNEL_TESTS) $(GPU_TESTS)

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: .venv/docs
	$(BIN)/python tools/site.py

explorer:
	$(PYTHON) tools/explorer.py

mutants: .venv/dev
	$(BIN)/python tools/mutate.py

bench-commits: .venv/experiments
	$(PIP) --editable '.[track]'
	$(BIN)/asv continuous --factor 1.2 --interleave-rounds $(BASE) HEAD

bench: .venv/experiments
	$(BIN)/multistable bench --device cpu

clean:
	rm -rf .venv

.venv/bin/python:
	$(PYTHON) -m venv .venv

# A stamp file per set of packages: installed again when a file that lists them changes.
.venv/experiments: pyproject.toml experiments/pyproject.toml constraints.txt | .venv/bin/python
	@echo 'Installing into .venv: some minutes, mostly for torch'
	$(PIP) --editable . --editable ./experiments
	touch $@

.venv/dev: pyproject.toml experiments/pyproject.toml constraints.txt | .venv/bin/python
	@echo 'Installing into .venv: some minutes, mostly for torch'
	$(PIP) --editable '.[dev]' --editable './experiments[distributed,mirror,ray,rl,search,slurm]'
	touch $@ .venv/experiments

.venv/docs: pyproject.toml experiments/pyproject.toml constraints.txt | .venv/bin/python
	@echo 'Installing into .venv: some minutes, mostly for torch'
	$(PIP) --editable '.[docs,rl,tutorials]' --editable ./experiments
	touch $@
