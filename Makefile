# From a bare clone with Python 3.11 to 3.14, pip and make:
#   make demo                                  the main job on a generated corpus, offline
#   make demo DATA=../shared/data/sst2         the same on a folder, a file or a Hub id
#   make test                                  what continuous integration runs
#   make test-oldest                           the tests on the oldest versions that pyproject.toml allows
#   make docs                                  the documentation site, in site/
#   make dist                                  source and wheel, checked, in dist/
#   make sbom                                  what is installed, as an SBOM in dist/; offline
#   make audit                                 the same, and known vulnerabilities of the pins
#   make coverage                              lines and branches that the tests reach
#   make mutants                               changes of the code that no test notices
#   make gpu                                   tests and times on a GPU, offline (after make gpu-kit)
#   make requirements                          the pins, with hashes, in requirements/
# Everything is installed into .venv, once, and again when pyproject.toml or the pins change.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# The first interpreter that Temper supports and that can make a virtual environment.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
	2>/dev/null && { echo $$name; break; }; done)

DATA ?= demo
ROWS ?= 2000
EVAL_ROWS ?= 500
SEEDS ?= 0,1,2
WORKERS ?= 2
RECIPES ?= plain,uegr_one_pass
$(if $(METHODS),$(error METHODS is gone: name recipes, RECIPES=plain,soup))
ifeq ($(DATA),demo)
OUT ?= runs/demo
# So few rows keep the job under five minutes on two cores.
EPOCHS ?= 3
ATTACKED ?= 50
SOURCES ?= --rows 300 --eval-rows 300 --shift films=demo:shift --anomaly unrelated=demo:anomaly
# The model lies in a wheel and the corpus is generated: nothing is asked of any network.
OFFLINE := HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
else
OUT ?= runs/demo-$(notdir $(DATA))-$(ROWS)
EPOCHS ?= 2
ATTACKED ?= 100
SOURCES ?= --rows $(ROWS) --eval-rows $(EVAL_ROWS)
endif

# Attacks on so few rows show the curves; raise it for numbers to rely on.
SETTINGS ?= --set train.epochs=$(EPOCHS) --set evaluate.attack_rows=$(ATTACKED) --set evaluate.embedding_attack.pgd.steps=3

.PHONY: requirements install demo test test-narrow test-oldest lint docs docs-version dist sbom audit coverage mutants bench bench-memory gpu-kit gpu clean

install: $(INSTALLED)

# Only wheels: a source distribution runs its code while pip installs it. torch comes first, since each
# machine has its own build: TORCH="torch==2.13.0 --index-url ..." names another than pip finds.
TORCH ?= --requirement requirements/torch.txt
PIP := python -m pip install --quiet --only-binary :all:
LOCKED := $(PIP) --no-deps --require-hashes --requirement

$(INSTALLED): pyproject.toml requirements/torch.txt requirements/dev.txt
	@test -x $(BIN)/python || test -n "$(PYTHON)" || \
		{ echo "Temper needs Python 3.11 to 3.14 with venv; name one: make PYTHON=/path/to/python3.13" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV), once. torch is large: this takes minutes, in which pip says nothing."
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

# One thread for each of two workers; a file goes to one of them, so that what its tests share is made
# once. pytest comes last: its closing line ends the output.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not gpu and not network"

test: lint
	$(PYTEST)

# The numerical tests again under the narrowest kernels that torch has: processors add up differently.
NUMERICAL := functional forward backward methods models evaluation seeding
test-narrow: $(INSTALLED)
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE \
		$(PYTEST) $(addprefix tests/,$(NUMERICAL)) --ignore=tests/methods/test_scaffold.py

# The documentation site in site/: `python -m http.server -d site` shows it, search and all. Its
# pages are made from the package, which would have to be installed again in an environment of its own.
DOCS := $(VENV)/.installed-docs
$(DOCS): $(INSTALLED)
	$(BIN)/$(LOCKED) requirements/docs.txt
	@touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The same as one version among others, in the branch gh-pages of this clone; nothing is pushed.
VERSION ?= $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/temper/__init__.py)
docs-version: $(DOCS)
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 PATH=$(abspath $(BIN)):$$PATH $(BIN)/mike deploy --update-aliases $(VERSION) latest
	PYTHONPATH=. $(BIN)/mike set-default latest

# What builds and audits lies in an environment of its own.
TOOLS := $(VENV)-tools
$(TOOLS)/.installed: $(INSTALLED)
	$(BIN)/python -m venv $(TOOLS)
	$(TOOLS)/bin/$(LOCKED) requirements/dist.txt
	@touch $@

# New versions of the pins that pyproject.toml still allows: make requirements UPGRADE=--upgrade
requirements: $(TOOLS)/.installed
	UV=$(TOOLS)/bin/uv requirements/lock.sh $(UPGRADE)

# Source and wheel in dist/, as they would be published; what they were built with is pinned too.
dist: $(TOOLS)/.installed
	rm -rf build dist
	$(TOOLS)/bin/python -m build --no-isolation
	$(TOOLS)/bin/python -m twine check --strict dist/*

# What .venv holds, as CycloneDX, without paths of this machine; this asks no network.
sbom: $(TOOLS)/.installed
	mkdir -p dist
	set -o pipefail; $(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
		--output-reproducible $(BIN)/python | sed 's#"file://[^"]*"#"."#' > dist/sbom.cdx.json

# Whether a vulnerability of a pin is known, from the public service. Without --strict a pin that it
# does not know would pass; the last line says why.
audit: sbom
	$(TOOLS)/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off $(patsubst %,-r %,$(wildcard requirements/*.txt)) \
		2> >(tail -n 1 >&2)

# The tests again on the oldest versions of the dependencies; the extras keep the pinned ones. torch is that of
# TORCH: TORCH=torch==2.11.0 is the oldest.
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

# Lines and branches of src/ that tests reach, subprocesses too: a table by package in Markdown, and by file with
# `coverage report --sort=cover`. All tests take about 25 minutes of two cores; TESTS names others.
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

# Changes of the code that no test notices; MUTANTS draws so many of each package (all: an hour and more).
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

# Half an hour and more: the figures of docs/benchmarks.md from 50,000 and 200,000 texts, three times.
bench-memory: $(INSTALLED)
	$(BIN)/python -m dev.benchmarks.evaluation_memory

# Everything that waits for a GPU, on a machine without a network: .gpu-kit travels with the checkout.
GPU_PYTHON ?= $(shell for name in python3 $(BIN)/python; do \
	$$name -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && { echo $$name; break; }; done)
GPU_OUT ?= dev/benchmarks/results

gpu-kit: $(INSTALLED)
	PYTHONPATH=src:. $(BIN)/python -m dev.benchmarks.gpu_kit

gpu:
	@test -n "$(GPU_PYTHON)" || \
		{ echo "No python3 here whose torch sees a GPU; name one: make gpu GPU_PYTHON=/path/to/python3" >&2; exit 2; }
	$(GPU_PYTHON) -m dev.benchmarks.gpu --out $(GPU_OUT)

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests reproduction dev examples -name __pycache__ -type d -prune -exec rm -rf {} +
