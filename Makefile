.DEFAULT_GOAL := help
SHELL := /bin/bash
# Without compiled bytecode every process compiles its libraries anew: seconds of each start.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin

help: ## these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(VENV)/.installed: requirements.lock pyproject.toml
	@test -x $(BIN)/uv || { python3 -m venv $(VENV) && $(BIN)/pip install -q uv; }
	@$(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

install: $(VENV)/.installed ## make .venv from the hashed lock, with uv bootstrapped where it is missing

lock: $(VENV)/.installed ## resolve requirements.lock anew
	$(BIN)/uv pip compile pyproject.toml --extra server --group dev --universal --generate-hashes --no-emit-index-url --no-header -q -o requirements.lock

quickstart: install ## start the platform on this machine and run the example tasks
	@$(BIN)/evolve quickstart

lint: install ## ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: install ## pyright
	$(BIN)/pyright

setup-docker: ## a Docker engine (installed when root and absent) and base images for the tests
	@bash tests/setup_docker.sh

harbor-peer: install ## an interpreter that can import `harbor`, which judges our downloads in the tests
	@bash tests/client/harbor_peer.sh

test: install ## everything that CI runs
	@bash tests/run.sh

test-full: install ## that, and every harness on every provider, user and C library
	@bash tests/run.sh --full

chaos: install ## a storm: make chaos SEED=… MINUTES=… (both may be left out), and every seed that once failed
	$(BIN)/python -m tests.chaos.run $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

bench: install ## what it costs and how long it takes, beside its targets: tests/bench/README.md
	$(BIN)/python -m tests.bench

migration: install ## write a migration from the tables: make migration M="why"
	$(BIN)/python -m tests.make_migration "$(M)"

.PHONY: help install quickstart lock lint types setup-docker harbor-peer test test-full chaos migration
