# Everything a developer calls. `make` alone lists it.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests bench tools

.PHONY: help run test check fix bench requirements lock

help:  ## list what can be made
	@sed -n 's/^\([a-z]*\):.*## /  make \1|/p' Makefile | column -t -s '|'

run: .venv/run.stamp  ## show what the example will do and when
	@$(BIN)/python -m onbeat next --file examples/onbeat.yaml

test: .venv/dev.stamp  ## run every test
	@$(BIN)/python -m pytest $(ARGS)

check: .venv/dev.stamp  ## format, lint, types, import rules, spelling
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "not formatted: make fix"; exit 1; }
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/codespell

fix: .venv/dev.stamp  ## format, and repair what can be repaired
	@$(BIN)/ruff check --fix --quiet $(SOURCES); $(BIN)/ruff format --quiet $(SOURCES)

bench: .venv/dev.stamp .venv/bench.stamp  ## compare with peers in one run; fail below the bounds
	@$(BIN)/python -m bench.calendar

requirements: .venv/dev.stamp  ## which requirement is proven by which test
	@$(BIN)/python -m pytest --collect-only --quiet --requirements

lock:  ## write the hashed requirements anew
	@$(PYTHON) tools/bootstrap.py lock

.venv/%.stamp: requirements/%.txt pyproject.toml tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py $*
