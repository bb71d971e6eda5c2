# Every target sets up .venv by itself; set-up is skipped while its inputs are unchanged.
PYTHON ?= python3
# Extra flags for pip, e.g. an index with CPU builds of torch:
#   make demo PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

# Pipelines run on the CPU over gloo here; one thread per process keeps sums repeatable.
export OMP_NUM_THREADS ?= 1
export DS_ACCELERATOR ?= cpu

.DEFAULT_GOAL := help
.PHONY: help demo test browser zoo parity docs lint types fmt clean

help:
	@echo "make demo    partition GPT-2, train it as a pipeline, compare the losses"
	@echo "make test    lint, types, import contracts and all tests"
	@echo "make zoo     capture, cut and verify every model of the zoo; print the table"
	@echo "make parity  train every model of the zoo as a pipeline; print the table"
	@echo "make docs    build the documentation's site in build/docs; warnings are errors"
	@echo "make lint | types | fmt | clean"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: constraints.txt pins versions for Python 3.11 or newer" >&2; \
	  echo "hint: make PYTHON=python3.11 …" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet $(PIP_FLAGS) \
	  -c constraints.txt -e '.[dev,docs,hf,highs,html]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/gpt2_demo.py

# The HTML report is tested in Chromium. Debian's is installed where it is absent, if
# root runs this; a test skips only where there is no browser, and says so.
browser:
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { \
	  test "$$(id -u)" = 0 && apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
	  echo "no Chromium here: the HTML report is not tested in a browser" >&2

test: lint types docs browser
	$(BIN)/python -m pytest -n 2 -m "not distributed"
	$(BIN)/python -m pytest -m distributed # each starts processes: one at a time

docs: $(STAMP)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs
	@echo "the site's first page: build/docs/index.html"

zoo: $(STAMP)
	$(BIN)/python -m tests.zoo.run

parity: $(STAMP)
	$(BIN)/python -m tests.distributed.parity_table

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

fmt: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache \
	  .hypothesis build dist *.egg-info
