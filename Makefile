# Everything a developer calls. `make` alone lists it.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests bench tools

SEEDS ?= 200
KILLS ?= 200
FAULTS ?= 60
RUNS ?= 100000
EVERY ?= 1
EXAMPLES ?= 200

.PHONY: help run example-services example-workflows example-sessions example-flows example-agents quick test full check fix laws sim mutants interleavings chaos faults soak ray fuzz bench growth load requirements tables lock

.NOTPARALLEL: # every target uses all cores

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | column -t -s '|'

run: .venv/run.stamp  ## start Onbeat on SQLite with the schedules of examples/onbeat.yaml
	@mkdir -p .onbeat
	@$(BIN)/python -m onbeat up --file examples/onbeat.yaml --database sqlite:///.onbeat/onbeat.db

example-services: .venv/run.stamp  ## start the services and timers of examples/services, in .onbeat/services
	@mkdir -p .onbeat && { test -e .onbeat/services || cp -R examples/services .onbeat/services; }
	@cd .onbeat/services && ../../$(BIN)/python -m onbeat up

example-sessions: .venv/run.stamp  ## send the prompts of examples/sessions to a chat server that pretends to think, in .onbeat/sessions
	@mkdir -p .onbeat && { test -e .onbeat/sessions || cp -R examples/sessions .onbeat/sessions; }
	@cd .onbeat/sessions && ../../$(BIN)/python play.py

example-workflows: .venv/run.stamp  ## start the executor and the workflow of examples/workflows, in .onbeat/workflows
	@mkdir -p .onbeat && { test -e .onbeat/workflows || cp -R examples/workflows .onbeat/workflows; }
	@cd .onbeat/workflows && ../../$(BIN)/python play.py

example-flows: .venv/run.stamp  ## launch the flows of examples/flows on a panel that pretends to run them, in .onbeat/flows
	@mkdir -p .onbeat && { test -e .onbeat/flows || cp -R examples/flows .onbeat/flows; }
	@cd .onbeat/flows && ../../$(BIN)/python play.py

example-agents: .venv/run.stamp  ## start the agents of examples/agents around their blackboard, in .onbeat/agents
	@mkdir -p .onbeat && { test -e .onbeat/agents || cp -R examples/agents .onbeat/agents; }
	@cd .onbeat/agents && ../../$(BIN)/python play.py

quick: .venv/dev.stamp  ## run the fast tests: core, stores on SQLite, architecture, tables of the docs: under a minute
	@$(BIN)/python tools/test.py quick

test: .venv/dev.stamp  ## run every test that a release needs; a part of them with ARGS="tests/core -k dst"
	@$(BIN)/python $(if $(ARGS),-m pytest $(ARGS),tools/test.py test)

full: test laws sim mutants interleavings chaos faults soak fuzz  ## run test, laws, sim, mutants, interleavings, chaos, faults, soak and fuzz: hours

check: .venv/dev.stamp  ## check format, lint, types, import rules and spelling
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "not formatted: make fix"; exit 1; }
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/codespell

fix: .venv/dev.stamp  ## format, and repair what can be repaired
	@$(BIN)/ruff check --fix --quiet $(SOURCES); $(BIN)/ruff format --quiet $(SOURCES)

laws: .venv/dev.stamp  ## search for new examples that break a law of the core: minutes
	@HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -m hypothesis tests/core
	@PEER_CASES=100_000 $(BIN)/python -m pytest -s tests/core/test_peers.py

sim: .venv/dev.stamp  ## attack the engine with SEEDS=200 simulated lives, and check each
	@$(BIN)/python -m tests.sim --seeds $(SEEDS)

mutants: .venv/dev.stamp  ## put defects into the engine: the simulator has to find every one (EVERY=4: one of four)
	@$(BIN)/python -m tests.sim.mutants --seeds $(SEEDS) --every $(EVERY)

interleavings: .venv/dev.stamp  ## step each pair of calls through every order of its statements on PostgreSQL
	@INTERLEAVINGS=all $(BIN)/python -m pytest -s tests/interleavings

chaos: .venv/dev.stamp  ## kill -9 real nodes KILLS=200 times on SQLite, then three on PostgreSQL, and check the database
	@$(BIN)/python -m tests.chaos --kills $(KILLS)

faults: .venv/dev.stamp  ## restart, crash and pause PostgreSQL and end its connections, FAULTS=60 times under three nodes
	@$(BIN)/python -m tests.chaos --server-faults $(FAULTS)

soak: .venv/dev.stamp  ## do RUNS=100000 runs of each kind of target on each database, and measure memory and files
	@$(BIN)/python -m tests.soak --runs $(RUNS)
	@$(BIN)/python -m tests.soak --runs $(RUNS) --kinds function --api

ray: .venv/dev.stamp .venv/ray.stamp  ## run functions on real Ray clusters in a separate network, and kill their nodes
	@$(BIN)/python tools/test.py ray

fuzz: .venv/dev.stamp  ## send the API EXAMPLES=200 invalid requests per operation and 100 000 malformed ones: minutes
	@HYPOTHESIS_PROFILE=random API_EXAMPLES=$(EXAMPLES) MALFORMED=100000 $(BIN)/python -m pytest --timeout 3600 tests/web/test_schemathesis.py tests/web/test_fuzz.py

bench: .venv/dev.stamp .venv/bench.stamp  ## compare with other schedulers; fails below the promised ratios
	@$(BIN)/python -m bench.calendar
	@$(BIN)/python -m bench.simulate
	@$(BIN)/python -m bench.burst
	@$(BIN)/python -m bench.postgres --rounds 1

growth: .venv/dev.stamp  ## measure every use case at 1 000, 10 000 and 100 000 schedules with ten runs each
	@$(BIN)/python -m bench.growth

load: .venv/dev.stamp  ## load the API with wrk, and measure how late schedules are meanwhile
	@$(BIN)/python -m bench.api

requirements: .venv/dev.stamp  ## list the tests that prove each requirement
	@$(BIN)/python -m pytest --collect-only --quiet --requirements

tables: .venv/dev.stamp  ## write the generated tables of the docs
	@$(BIN)/python tools/tables.py

lock:  ## resolve the hashed requirements again
	@$(PYTHON) tools/bootstrap.py lock

.venv/%.stamp: requirements/%.txt pyproject.toml tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py $*
