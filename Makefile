# From a bare clone with Python 3.11 to 3.14, pip and make:
#   make demo                                  compare two recipes on a generated corpus, offline
#   make demo DATA=../shared/data/sst2         the same on a folder, a file or a Hub id
#   make test                                  linters and tests, as in continuous integration
#   make test-oldest                           the tests on the oldest versions that pyproject.toml allows
#   make docs                                  the documentation site, in site/
#   make dist                                  source and wheel, checked, in dist/
#   make sbom                                  SBOM of the installed packages, in dist/; offline
#   make audit                                 the SBOM, and known vulnerabilities of the pinned packages
#   make coverage                              line and branch coverage of the tests
#   make mutants                               mutation testing
#   make gpu                                   tests and benchmarks on a GPU, offline (after make gpu-kit)
#   make requirements                          pinned versions with hashes, in requirements/
# Everything is installed into .venv on first use, and again when pyproject.toml or the pinned versions change.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# The first supported interpreter that can create a virtual environment.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
	2>/dev/null && { echo $$name; break; }; done)

DATA ?= demo
ROWS ?= 2000
EVAL_ROWS ?= 500
SEEDS ?= 0,1,2
WORKERS ?= 2
RECIPES ?= plain,uegr_one_pass
$(if $(METHODS),$(error METHODS was removed. Use RECIPES=plain,soup))
ifeq ($(DATA),demo)
OUT ?= runs/demo
# Few rows, so that the demo takes about five minutes on two cores.
EPOCHS ?= 3
ATTACKED ?= 50
SOURCES ?= --rows 300 --eval-rows 300 --shift films=demo:shift --anomaly unrelated=demo:anomaly
# The model is an installed package and the corpus is generated, so no network is needed.
OFFLINE := HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
else
OUT ?= runs/demo-$(notdir $(DATA))-$(ROWS)
EPOCHS ?= 2
ATTACKED ?= 100
SOURCES ?= --rows $(ROWS) --eval-rows $(EVAL_ROWS)
endif

# Few attacked rows are enough to show the curves; raise ATTACKED for precise numbers.
SETTINGS ?= --set train.epochs=$(EPOCHS) --set evaluate.attack_rows=$(ATTACKED) --set evaluate.embedding_attack.pgd.steps=3

.PHONY: requirements install demo test test-narrow test-oldest lint docs docs-version dist sbom audit coverage mutants bench bench-memory gpu-kit gpu clean

install: $(INSTALLED)

# Only wheels, because installing a source distribution runs its code. torch is installed separately and first,
# because its build depends on the machine: TORCH="torch==2.13.0 --index-url ..." selects another one.
TORCH ?= --requirement requirements/torch.txt
PIP := python -m pip install --quiet --only-binary :all:
LOCKED := $(PIP) --no-deps --require-hashes --requirement

$(INSTALLED): pyproject.toml requirements/torch.txt requirements/dev.txt
	@test -x $(BIN)/python || test -n "$(PYTHON)" || \
		{ echo "Temper needs Python 3.11 to 3.14 with venv. Give its path: make PYTHON=/path/to/python3.13" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV). torch is large, so this takes minutes without output."
	$(BIN)/$(PIP) $(TORCH)
	$(BIN)/$(LOCKED) requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-index --no-deps --no-build-isolation -e .
	@touch $@

demo: $(INSTALLED)
	$(OFFLINE) TOKENIZERS_PARALLELISM=false $(BIN)/temper compare --model minilm --data $(DATA) $(SOURCES) \
		--recipes $(RECIPES) --seeds $(SEEDS) --workers $(WORKERS) $(SETTINGS) --out $(OUT)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One thread for each of two workers. All tests of a file run in the same worker, so that shared fixtures are
# made once.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not gpu and not network"

test: lint
	$(PYTEST)

# The numerical tests with torch's narrowest CPU kernels, because the order of summation depends on the CPU.
NUMERICAL := functional forward backward methods models evaluation seeding
test-narrow: $(INSTALLED)
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE \
		$(PYTEST) $(addprefix tests/,$(NUMERICAL)) --ignore=tests/methods/test_scaffold.py

# The documentation site in site/: `python -m http.server -d site` shows it with its search. It is built in .venv,
# because its pages are generated from the installed package.
DOCS := $(VENV)/.installed-docs
$(DOCS): $(INSTALLED)
	$(BIN)/$(LOCKED) requirements/docs.txt
	@touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The site as one of several versions, in the branch gh-pages of this clone; nothing is pushed.
VERSION ?= $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/temper/__init__.py)
docs-version: $(DOCS)
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 PATH=$(abspath $(BIN)):$$PATH $(BIN)/mike deploy --update-aliases $(VERSION) latest
	PYTHONPATH=. $(BIN)/mike set-default latest

# The tools that build and audit have a separate environment.
TOOLS := $(VENV)-tools
$(TOOLS)/.installed: $(INSTALLED)
	$(BIN)/python -m venv $(TOOLS)
	$(TOOLS)/bin/$(LOCKED) requirements/dist.txt
	@touch $@

# Newer versions within the bounds of pyproject.toml: make requirements UPGRADE=--upgrade
requirements: $(TOOLS)/.installed
	UV=$(TOOLS)/bin/uv requirements/lock.sh $(UPGRADE)

# Source distribution and wheel in dist/, built with pinned tools.
dist: $(TOOLS)/.installed
	rm -rf build dist
	$(TOOLS)/bin/python -m build --no-isolation
	$(TOOLS)/bin/python -m twine check --strict dist/*

# The packages in .venv as a CycloneDX SBOM, without local paths; needs no network.
sbom: $(TOOLS)/.installed
	mkdir -p dist
	set -o pipefail; $(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
		--output-reproducible $(BIN)/python | sed 's#"file://[^"]*"#"."#' > dist/sbom.cdx.json

# Look up known vulnerabilities of the pinned packages in the public service. --strict fails on a package that the
# service does not know; only the last line of the errors is shown.
audit: sbom
	$(TOOLS)/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off $(patsubst %,-r %,$(wildcard requirements/*.txt)) \
		2> >(tail -n 1 >&2)

# The tests with the oldest allowed versions of the dependencies; optional dependencies keep the pinned versions.
# TORCH selects torch; the oldest is TORCH=torch==2.11.0.
OLDEST := .venv-oldest
$(OLDEST)/.installed: $(TOOLS)/.installed pyproject.toml
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/$(PIP) $(TORCH)
	$(OLDEST)/bin/$(LOCKED) requirements/dev.txt
	mkdir -p build
	$(TOOLS)/bin/uv pip compile pyproject.toml --resolution lowest-direct --no-build --quiet \
		--python $(OLDEST)/bin/python | grep -vE '^(torch|triton|nvidia|cuda)' > build/oldest.txt
	$(OLDEST)/bin/$(PIP) --no-deps --requirement build/oldest.txt
	$(OLDEST)/bin/python -m pip install --quiet --no-index --no-deps --no-build-isolation -e .
	@touch $@

test-oldest: $(OLDEST)/.installed
	$(subst $(BIN),$(OLDEST)/bin,$(PYTEST)) tests

# Line and branch coverage of src/, including subprocesses: a Markdown table by package; `coverage report
# --sort=cover` lists files. All tests take about 25 minutes on two cores; TESTS selects a part.
QUALITY := $(VENV)/.installed-quality
$(QUALITY): $(INSTALLED)
	$(BIN)/$(LOCKED) requirements/quality.txt
	@touch $@

TESTS ?= tests
coverage: $(QUALITY)
	rm -rf build/coverage
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -q -m "not slow and not gpu and not network" $(TESTS)
	$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m dev.coverage_table

# Mutation testing with MUTANTS random mutants per package (all of them take more than an hour).
MUTANTS ?= 60
mutants: $(QUALITY)
	$(BIN)/python -m dev.mutation.mutants functional forward backward --number $(MUTANTS)

bench: $(INSTALLED)
	$(BIN)/python -m dev.benchmarks.account
	$(BIN)/python -m dev.benchmarks.step_cost --rounds 5
	$(BIN)/python -m dev.benchmarks.memory
	$(BIN)/python -m dev.benchmarks.mask_cost
	$(BIN)/python -m dev.benchmarks.paths --rounds 5
	$(BIN)/python -m dev.benchmarks.estimator --draws 6
	$(BIN)/python -m dev.benchmarks.text_attack --rows 64 --train-rows 800
	$(BIN)/python -m dev.benchmarks.evaluation_memory --few 10000 --many 40000 --processes 1
	$(BIN)/python -m dev.benchmarks.start_up

# The figures of docs/benchmarks.md, from 50,000 and 200,000 texts, three times; takes more than half an hour.
bench-memory: $(INSTALLED)
	$(BIN)/python -m dev.benchmarks.evaluation_memory

# Tests and benchmarks on a GPU machine without a network: copy .gpu-kit with the checkout.
GPU_PYTHON ?= $(shell for name in python3 $(BIN)/python; do \
	$$name -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && { echo $$name; break; }; done)
GPU_OUT ?= dev/benchmarks/results

gpu-kit: $(INSTALLED)
	PYTHONPATH=src:. $(BIN)/python -m dev.benchmarks.gpu_kit

gpu:
	@test -n "$(GPU_PYTHON)" || \
		{ echo "No python3 found whose torch sees a GPU. Give its path: make gpu GPU_PYTHON=/path/to/python3" >&2; exit 2; }
	$(GPU_PYTHON) -m dev.benchmarks.gpu --out $(GPU_OUT)

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests reproduction dev examples -name __pycache__ -type d -prune -exec rm -rf {} +
