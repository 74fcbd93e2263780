# One virtual environment, two stamps: what the demo needs, and what the tests need on top.
PYTHON ?= python3.11
BIN := .venv/bin
RESULTS := build/benchmarks
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test serial years quick check fix coverage coverage-all mutants zoo bench soak fuzz hostile audit clients docs docs-test pictures container-check clean

help: ## Show these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: .venv/.demo ## Walk one real model through the whole chain
	$(BIN)/mlctl demo

REPORTS := build/reports
# Four processes share the tests file by file: many wait for servers most of the time. Five were
# no faster on two cores.
PYTEST := $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: check ## Run all checks, then every test but the serial ones and the simulations; writes build/reports/tests.xml
	$(PYTEST) -m "not serial and not years" --junit-xml $(REPORTS)/tests.xml

serial: .venv/.dev ## Run the tests that need the machine to themselves, one after the other
	$(BIN)/python -m pytest -m serial --junit-xml $(REPORTS)/serial.xml

years: .venv/.dev ## Simulate rollouts with the gates, hundreds of seeds each (2 minutes)
	$(BIN)/python -m pytest --numprocesses 2 --dist load -m years --junit-xml $(REPORTS)/years.xml

quick: .venv/.dev ## Run the tests that start no process and train nothing (under 3 minutes)
	$(PYTEST) -m "not slow"

# Pure decisions, of which each wrong one costs users most: tests/README.md.
CORE := bundle/manifest.py,optimize/variants/choice.py,services/online/batching/scheduler.py,rollout/domain/machine/gates.py,rollout/domain/machine/state_machine.py
CORE_TESTS := tests/bundle tests/optimize/variants/test_choice*.py tests/services/online/batching tests/rollout/domain

coverage: .venv/.dev ## Require every branch of the five pure modules to be run by the quick tests of their folders
	$(BIN)/coverage erase
	$(BIN)/coverage run --include=$(CORE) -m pytest --quiet -m "not slow" $(CORE_TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include=$(CORE) --show-missing --fail-under=100

coverage-all: .venv/.dev ## Measure the branch coverage of each package by the whole suite, in twice its time
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --quiet --numprocesses 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet -o $(REPORTS)/coverage.json
	@$(BIN)/python -m tests.branches $(REPORTS)/coverage.json

mutants: .venv/.dev ## Change the five pure modules line by line; fail on a change that is not noticed (MODULES=)
	$(PIP_INSTALL) --editable '.[mutants]'
	$(BIN)/python -m tests.mutants $(MODULES)

zoo: .venv/.dev ## Compare the answers of every kind of model with its source's (5 minutes); see tests/outside
	$(BIN)/python -m tests.outside

check: .venv/.dev docs ## Check format, lint, types, layers and the site; changes nothing else
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/.dev ## Build the site into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-test: .venv/.dev ## Run the commands of README and site that are marked sh, in temporary homes
	$(BIN)/python -m docs.run

pictures: .venv/.dev ## Run the demo and the simulations, and draw them into docs/images
	$(BIN)/python -m docs.pictures
	$(BIN)/python -m docs.diagrams

fix: .venv/.dev ## Apply the formatter and the safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev ## Run the benchmarks one after the other and write their page (PEERS=)
	mkdir -p $(RESULTS)
	$(BIN)/python -m benchmarks.online --json $(RESULTS)/online.json $(if $(PEERS),--peers $(PEERS))
	for each in overload optimize runners rollout generate; do \
		$(BIN)/python -m benchmarks.$$each --json $(RESULTS)/$$each.json || exit 1; done
	$(BIN)/python -m benchmarks.page $(RESULTS)

soak: .venv/.dev ## Serve everything at once for 30 minutes (SOAK_SECONDS=) and watch memory
	$(BIN)/python -m benchmarks.soak

fuzz: .venv/.dev ## Give every reader any bytes for 10 minutes (FUZZ_SECONDS=); findings go to the corpus
	$(BIN)/python -W ignore -m tests.fuzz --seconds $${FUZZ_SECONDS:-600}

hostile: .venv/.dev ## Put 30 hostile connections beside one honest client; fail if it waits (3 minutes)
	$(BIN)/python -m tests.hostile $${ONLY:+--only $$ONLY}

audit: .venv/bin/python ## Compare the pinned versions with the known faults; needs the network
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	.venv/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off \
		--vulnerability-service $${AUDIT_SERVICE:-pypi} --requirement constraints.txt \
		|| { echo "Faults were found, or the advisories could not be reached: see above." >&2; exit 1; }

clients: .venv/.dev ## Call real servers by the clients of others; their results are in docs/protocol.md (WRITE=--write)
	$(BIN)/python -W ignore -m tests.clients $(WRITE)

container-check: .venv/.dev ## Install and serve a container's files as another user (CHECK_PYTHON=, BASE=)
	$(BIN)/python -m tests.container_check

clean: ## Remove the virtual environment and every cache
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) --version
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing what mlctl needs (a few minutes the first time) ..."
	$(PIP_INSTALL) --editable '.[demo]'
	@touch $@

.venv/.dev: .venv/.demo
	@echo "Installing what the tests need ..."
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@
