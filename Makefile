# Two commands: `make demo` and `make test`. Each sets up .venv from the lock file first, once.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Any Python from 3.10 to 3.13; `make PYTHON=python3.12 test` names one.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help
help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */: /' | column -t -s:

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.10 to 3.13 with venv found; install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(READY)  ## Set up .venv; the other targets do it by themselves.

.PHONY: demo
demo: $(READY)  ## Make a small sample and build a dataset from it.
	@test -e demo/shapes/annotations/panoptic.json || { rm -rf demo/shapes; \
		$(BIN)/shardbeam sample shapes --output demo/shapes --images 100 --seed 0; }
	@$(BIN)/shardbeam build coco --images demo/shapes/images \
		--annotations demo/shapes/annotations/instances.json --output demo/coco \
		--name shapes --fractions train=0.8,validation=0.2 --if-changed --overwrite
	@ls -l demo/coco
	@echo
	@echo "The same pictures as a folder per class, to try next:"
	@echo "  .venv/bin/shardbeam build image-folder --images demo/shapes/class_folders --output demo/classes"

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: test
test: lint  ## Lint, format check, types, import contract, all tests.
	$(BIN)/pytest -n auto --dist worksteal

.PHONY: format
format: $(READY)  ## Format the code, mend what can be mended by itself.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: fuzz
fuzz: $(READY)  ## Fuzz the parsers: 100,000 inputs of each, with a new seed.
	$(BIN)/python -m tests.fuzz.run --inputs 100000

.PHONY: faults
faults: $(READY)  ## Kill builds at many more moments.
	SHARDBEAM_FAULTS=long $(BIN)/pytest -n auto -m faults

.PHONY: faults-storage
faults-storage: $(READY)  ## Build on gs:// under many more faults and kills.
	SHARDBEAM_FAULTS=long $(BIN)/pytest -n auto tests/gcs/test_schedules.py

.PHONY: bench
bench: $(READY)  ## Benchmarks, side by side, into benchmarks/RESULTS.md.
	$(BIN)/python -m benchmarks.run

.PHONY: lock
lock:  ## Make the lock files anew (needs uv).
	uv pip compile pyproject.toml --extra tensorflow --extra build --extra dev --universal --python-version 3.10 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade -o requirements.lock
	uv pip compile pyproject.toml --extra build --universal --python-version 3.10 --constraint requirements.lock \
		--generate-hashes --no-header --no-annotate --quiet -o requirements-worker.lock

.PHONY: protos
protos:  ## Compile the Example proto anew (needs grpcio-tools).
	python3 -m grpc_tools.protoc -I. --python_out=. --pyi_out=. transforms/examples/example.proto
