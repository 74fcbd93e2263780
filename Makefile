# One virtual environment, two stamps: what the demo needs, and what the tests need on top.
PYTHON ?= python3.11
BIN := .venv/bin
RESULTS := build/benchmarks
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check fix bench soak fuzz audit container-check clean

help: ## Show these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: .venv/.demo ## Walk one real model through the whole chain
	$(BIN)/mlctl demo

# The tests drive real servers and brokers, on a machine that may stall: what fails beside
# other tests counts if it fails alone, too. Both outcomes are shown.
test: check ## Run all checks and the whole test suite
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder || { \
		[ $$? -eq 1 ] && echo "Some tests failed; they run once more, alone." && \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --exitfirst; }

check: .venv/.dev ## Check format, lint, types and layers; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: .venv/.dev ## Apply the formatter and the safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev ## Run every benchmark (hours on a quiet machine) and write its page (PEERS=)
	mkdir -p $(RESULTS)
	$(BIN)/python -m benchmarks.online --json $(RESULTS)/online.json $(if $(PEERS),--peers $(PEERS))
	for each in overload optimize runners rollout; do \
		$(BIN)/python -m benchmarks.$$each --json $(RESULTS)/$$each.json || exit 1; done
	$(BIN)/python -m benchmarks.page $(RESULTS)

soak: .venv/.dev ## Serve everything at once for 30 minutes (SOAK_SECONDS=) and watch memory
	$(BIN)/python -m benchmarks.soak

fuzz: .venv/.dev ## Give every reader any bytes for 10 minutes (FUZZ_SECONDS=); findings go to the corpus
	$(BIN)/python -W ignore -m tests.fuzz --seconds $${FUZZ_SECONDS:-600}

audit: .venv/bin/python ## Compare the pinned versions with the known faults; needs the network
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	.venv/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off \
		--vulnerability-service $${AUDIT_SERVICE:-pypi} --requirement constraints.txt \
		|| { echo "Faults were found, or the advisories could not be reached: see above." >&2; exit 1; }

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
