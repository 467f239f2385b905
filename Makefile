# Two commands matter: `make demo` and `make test`. Both make the environment first: the demo one that runs the program,
# everything else one with the tools of development, too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiled modules are kept: tests and their processes would compile them anew each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow lint docs bench gpu clean
.DELETE_ON_ERROR:

demo: $(VENV)/.ready
	$(BIN)/mtl demo

# Processes side by side have a thread each.
test test-slow bench gpu: export OMP_NUM_THREADS ?= 1

# Each worker takes half of the tests in order, so what the tests of a file share is made once.
test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-slow: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist worksteal -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site in site/; a warning is an error. The variable silences an advertisement.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.throughput
	$(BIN)/python -m benchmarks.precision
	$(BIN)/python -m benchmarks.decoding
	$(BIN)/python -m benchmarks.masks
	$(BIN)/python -m benchmarks.worth
	$(BIN)/python -m benchmarks.translation

# What to run first on a machine with a GPU: its tests, speed, waits, curves and masks, in twelve minutes; writes gpu/gpu.md.
gpu: $(VENV)/.dev
	test -d data/small || $(BIN)/mtl data ewt5 --subset=small --out=data/small
	$(BIN)/python -m benchmarks.gpu --corpus=data/small

# The versions are those of constraints.txt; without a pin, pip takes a torch with gigabytes of CUDA packages. Python compiles
# a module when it is first imported: most modules of an environment never are.
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("mtl needs Python 3.11 or newer: make PYTHON=python3.12 demo" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(INSTALL) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .cache
