# One verb, one job. Everything happens inside ./.venv and ./examples/demo; nothing is installed elsewhere.
PYTHON ?= python3
LANES ?= 4
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SUITE := tests/conformance/node_modules/.installed
CLIENTS := tests/clients/node_modules/.installed
BROWSER := tests/browser/node_modules/.installed
PYTHON_V1 := $(VENV)/python-v1/.installed
PACKAGERS := $(VENV)/packages/.installed
DOCS := $(VENV)/docs/.installed
TOOLS := $(SUITE) $(CLIENTS) $(BROWSER) $(PYTHON_V1) $(PACKAGERS) $(DOCS)
COMPILED := $(VENV)/compiled/.installed
PEERS := benchmarks/peers
PEERS_NPM := $(PEERS)/npm/node_modules/.installed
PEERS_PYPI := $(PEERS)/mcp-proxy/.venv/.installed $(PEERS)/fastmcp/.venv/.installed
# Tests that run each night, before a release, and at a merge only if one of their inputs is another one than when they
# passed: docs/hacking.md, "What runs when".
NIGHTLY := image deb compiled dbos bench upgrade
image_test := tests/packages/test_image.py
image_inputs := deploy/Dockerfile requirements/image.txt requirements/runtime.txt
deb_test := tests/packages/test_deb.py
deb_inputs := deploy/packages deploy/metamcp.service requirements/runtime.txt
compiled_test := tests/packages/test_compiled_wheel.py
compiled_inputs := deploy/compiled.py $(addprefix worker/metamcp_worker/,child front front_calls front_clients front_steps http ipc)
dbos_test := tests/worker/engine/test_dbos_executor.py
dbos_inputs := $(addprefix worker/metamcp_worker/,cel engine runtime/postgres.py) tests/worker/engine
bench_test := tests/live/test_bench.py
bench_inputs := $(wildcard benchmarks/*.py) benchmarks/scenarios
upgrade_test := tests/live/test_upgrade_older.py
upgrade_inputs := $(addprefix supervisor/metamcp_supervisor/,gateway servers/shared_workers.py) worker/metamcp_worker/ipc
# A line for each: its name, and a hash of its inputs. `make test-all` writes it.
PASSED := tests/passed.txt
passed = $(1) $(shell git ls-files -- $($(1)_test) $($(1)_inputs) | git hash-object --stdin-paths | git hash-object --stdin)
LEFT_OUT = $(if $(ALL),,$(foreach name,$(NIGHTLY),$(if \
	$(shell grep -x '$(call passed,$(name))' $(PASSED)),--ignore=$($(name)_test))))
COMPILE = $(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	--strip-extras --no-header --allow-unsafe
SECONDS ?= 3600
PROFILE ?= check
EXAMPLES = $(if $(PROFILE),--hypothesis-profile=$(PROFILE))
N ?= 20

.PHONY: help setup hook run demo check style types strict pure test real test-all flaky imports pictures reference docs conformance bench bench-publish bench-peers profile soak soak-remote soak-load soak-bad servers fuzz wheel wheel-compiled test-compiled deb lock clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

$(STAMP): pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

setup: $(STAMP) hook ## virtual environment with everything in it, and the hook for commit messages

hook: ## git refuses a commit whose message breaks the rules of docs/hacking.md
	@install -D -m 755 tests/commit-msg "$$(git rev-parse --git-path hooks)/commit-msg"

run: ## the gateway in the foreground, in front of six real servers
	@$(PYTHON) examples/demo/demo.py run

demo: ## the same, calls tools in both eras, runs three scripts and three workflows, and stops
	@$(PYTHON) examples/demo/demo.py demo

check: $(STAMP) ## style, types and the pure tests: a minute
	@$(MAKE) --no-print-directory --jobs=2 style types pure

style: $(STAMP)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

types: $(STAMP)
	$(BIN)/mypy --no-error-summary

strict: $(STAMP) ## types by a second judge: 90 seconds, so each night and before a release
	$(BIN)/pyright --warnings

pure: $(STAMP)
	@# One lane more than there are cores: some of these tests wait, too.
	$(BIN)/python -m pytest -q -m "not live and not process" -n $$($(PYTHON) -c 'import os; print(min(8, os.cpu_count() + 1))') --dist worksteal $(EXAMPLES) tests

test: ## what a merge has to pass: check, and the tests with real processes
	@# Side by side, because none of them keeps all processors busy.
	@$(MAKE) --no-print-directory $(STAMP)
	@$(MAKE) --no-print-directory --jobs=4 style types pure $(TOOLS)
	@$(MAKE) --no-print-directory real

real: $(STAMP) $(TOOLS) ## the tests with real processes
	@# In lanes, a file in one of them: most of these tests wait for processes.
	$(BIN)/python -m pytest -q -m "live or process" -n $(LANES) --dist loadfile --no-loadscope-reorder $(EXAMPLES) $(LEFT_OUT) tests

test-all: ## test, and what runs each night and before a release: pyright, images, packages, longer soaks, more examples
	@$(MAKE) --no-print-directory strict
	METAMCP_SOAK_S=60 $(MAKE) --no-print-directory test ALL=1 PROFILE=
	@printf '%s\n' $(foreach name,$(NIGHTLY),'$(call passed,$(name))') >$(PASSED)

flaky: $(STAMP) ## test files again and again beside a busy loop: make flaky N=20 FILE="tests/live/test_crash.py …"
	$(BIN)/python -m tests.flaky --times $(N) --lanes $(LANES) $(FILE)

$(SUITE): tests/conformance/package.json tests/conformance/package-lock.json
	npm ci --prefix tests/conformance --silent --no-audit --no-fund
	@# Node.js brings a script for a debugger; what ends with .py below tests is ours and is checked.
	@find tests/conformance/node_modules -name '*.py' -delete
	@touch $(SUITE)

$(CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	npm ci --prefix tests/clients --silent --no-audit --no-fund --ignore-scripts
	@touch $(CLIENTS)

$(BROWSER): tests/browser/package.json tests/browser/package-lock.json
	npm ci --prefix tests/browser --silent --no-audit --no-fund --ignore-scripts
	@touch $(BROWSER)

$(PYTHON_V1): tests/clients/v1/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

$(PACKAGERS): requirements/packages.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

wheel: $(STAMP) $(PACKAGERS) ## dist/: the wheel and the source distribution of this commit
	$(BIN)/python -m hatchling build -d dist
	$(VENV)/packages/bin/twine check --strict dist/*.whl dist/*.tar.gz

wheel-compiled: $(STAMP) ## dist/: a wheel for this Python and this processor, its hot modules compiled: two minutes
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m hatchling build -d dist -t wheel

$(COMPILED): $(STAMP) pyproject.toml requirements/dev.txt $(shell git ls-files worker supervisor deploy/compiled.py)
	rm -rf $(@D)
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m hatchling build -d $(@D)/dist -t wheel
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index $(@D)/dist/*.whl
	@touch $@

test-compiled: $(COMPILED) ## every test with real processes, and the pure ones of the worker, on compiled modules
	@$(MAKE) --no-print-directory --jobs=2 $(TOOLS)
	@# The sources of the checkout are not in the path, so what is imported is what is installed.
	$(VENV)/compiled/bin/python -m pytest -q -o pythonpath=. -m "not live and not process" -n $(LANES) --dist worksteal tests/worker
	@# tests/packages builds wheels of its own.
	$(VENV)/compiled/bin/python -m pytest -q -o pythonpath=. -m "live or process" -n $(LANES) --dist loadfile --no-loadscope-reorder tests --ignore tests/packages

deb: wheel ## dist/: a .deb and an .rpm with everything in them, for this Python and this processor
	$(BIN)/python -m deploy.packages.build dist

pictures: $(STAMP) ## the pictures of README and docs anew, from the program itself: two minutes
	$(BIN)/python -m tests.pictures.draw

imports: $(STAMP) ## who imports whom, drawn into the READMEs of supervisor/ and worker/; the features in docs/architecture.md
	$(BIN)/python -m tests.picture

reference: $(STAMP) ## docs/reference, written from the program
	$(BIN)/python -m deploy.docs.write

docs: $(STAMP) $(DOCS) ## the documentation site, in dist/site
	$(BIN)/python -m deploy.docs.site dist/site

$(DOCS): requirements/docs.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

conformance: $(STAMP) $(SUITE) ## the official suite in every cell: direct, and through the gateway
	$(BIN)/python -m tests.conformance.run

bench: $(STAMP) ## every measurement beside a bare relay, a ceiling and a direct child: a quarter of an hour
	$(BIN)/python -m benchmarks

profile: $(STAMP) ## where the microseconds of one call go
	$(BIN)/python -m benchmarks.profile

bench-publish: $(STAMP) $(COMPILED) ## make bench, its figures kept, and docs/performance.md written from them
	@# A goal that is missed fails the run, and the page says so.
	-$(BIN)/python -m benchmarks --out benchmarks/results
	-$(VENV)/compiled/bin/python -m benchmarks --only ladder clients --out benchmarks/results/compiled
	$(BIN)/python -m benchmarks.page

soak: $(STAMP) ## ten minutes of random faults under load; every request gets its one answer
	$(BIN)/python -m tests.faults.soak --seconds 600 --seed 7 --servers 20 --clients 200

soak-remote: $(STAMP) ## ten minutes of remote servers that misbehave in turns
	$(BIN)/python -m tests.faults.soak_remote --seconds 600

soak-load: $(STAMP) ## an hour of mixed load: nothing grows, slows down or is lost; SECONDS=600 for less
	$(BIN)/python -m benchmarks.soak_load --seconds $(SECONDS)

fuzz: $(STAMP) ## any input for what reads input, an hour for each of five readers; SECONDS=60 for less
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

servers: $(STAMP) $(PACKAGERS) ## forty public servers with and without a sandbox, side by side: half an hour
	$(BIN)/python -m tests.clients.survey $(NAMES)

soak-bad: $(STAMP) ## a million bad requests and 100,000 bad lines of a server; nothing grows
	$(BIN)/python -m tests.faults.soak_bad --requests 1000000 --lines 100000

bench-peers: $(COMPILED) $(PEERS_NPM) $(PEERS_PYPI) ## beside other gateways, whom it installs first as far as it can; docs/peers.md
	@# A goal that is missed fails the run, and the page says so.
	$(VENV)/compiled/bin/python -m benchmarks.peers --json $(PEERS)/results.json --page

$(PEERS_NPM): $(PEERS)/npm/package.json $(PEERS)/npm/package-lock.json
	npm ci --prefix $(PEERS)/npm --silent --no-audit --no-fund --ignore-scripts
	@touch $@

$(PEERS)/%/.venv/.installed: $(PEERS)/%/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

lock: ## resolve the requirements of development and of the demo anew
	$(BIN)/python -m pip install --quiet pip-tools
	$(COMPILE) -o requirements/dev.txt pyproject.toml requirements/dev.in
	$(COMPILE) -o requirements/docs.txt requirements/docs.in
	$(COMPILE) -o examples/demo/requirements.txt pyproject.toml examples/demo/requirements.in
	$(COMPILE) --extra otel -c requirements/dev.txt -o requirements/runtime.txt pyproject.toml
	$(COMPILE) -o requirements/packages.txt requirements/packages.in
	$(COMPILE) -o requirements/image.txt requirements/image.in

clean: ## remove what the other verbs made
	rm -rf $(VENV) examples/demo/.venv examples/demo/node_modules tests/conformance/node_modules tests/clients/node_modules tests/browser/node_modules $(PEERS)/npm/node_modules $(PEERS)/mcp-proxy/.venv $(PEERS)/fastmcp/.venv dist .mypy_cache .ruff_cache .hypothesis
