# `make demo` and `make test` need only Python >= 3.11, pip and make: everything else is set up here.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
DEMO   ?= runs/demo
GALLERY := $(filter-out docs/problems/index.md,$(wildcard docs/problems/*.md))

.PHONY: help setup demo test pages check format bench faults docs clean
help:            ## list the targets
	@grep -hE '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(TOOLS)  ## make .venv with every pinned dependency
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Lemma needs Python >= 3.11; set PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[plots]'
	@touch $@
$(TOOLS): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)   ## train six families on Shakespeare, compare them, write a report
	$(BIN)/lemma study families --jobs 2 --out $(DEMO)

test: $(TOOLS)   ## the test suite, with a sample of the docs' pages
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not page'

pages: $(TOOLS)  ## execute every page of README and docs
	$(BIN)/python -m pytest -n 2 --dist worksteal -m page tests/docs

check: $(TOOLS)  ## formatting, lint, types, vocabulary, line budget
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m tools.vocabulary
	$(BIN)/python -m tools.lines

format: $(TOOLS) ## let ruff put everything in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(TOOLS)  ## the speed and memory claims, measured against their contenders
	$(BIN)/python -m benchmarks

faults: $(TOOLS) ## kills, flipped bits, full disks, hostile inputs, rude clients: tried and failed (FRACTION=0.1: a tenth)
	$(BIN)/python -m faults --fraction $(or $(FRACTION),1)

docs: $(TOOLS)   ## run what README and docs show, write the notebooks, build the site, check its links
	$(BIN)/python -m pages notebook $(GALLERY)
	$(BIN)/python -m pytest tests/docs
	$(BIN)/python -m pages execute $(GALLERY:.md=.ipynb)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pages links site

clean:           ## remove what the targets made (not your runs)
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache
