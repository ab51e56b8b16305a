# Everything a fresh machine needs: Python 3.11 and make. The environment lives in .venv.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
SHELL := /bin/bash
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help setup smoke micro gold test test-slow lint lock clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: $(STAMP) ## make the environment (torch first: everything else then fits around it)

$(STAMP): pyproject.toml requirements.lock envs_setup/mysql.sh
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet $$(grep -E '^(torch|setuptools)==' requirements.lock)
	$(VENV)/bin/pip install --quiet --no-build-isolation --requirement requirements.lock
	$(VENV)/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	envs_setup/mysql.sh
	touch $@

smoke: setup ## the whole paper in miniature: set-up, training, evaluation, Table 1
	snakemake --profile smoke
	@cat results/smoke/paper/table1.md results/smoke/paper/summary.md

micro: setup ## the science in miniature: 5 seeds, 3 iterations
	snakemake --profile micro
	@cat results/micro/paper/table1.md results/micro/paper/summary.md

test: setup ## all tests but the slow ones
	pytest -n 2 --dist loadfile -m "not slow"

test-slow: setup ## the slow tests only
	pytest -m slow

lint: setup ## the laws that need no run
	ruff check && ruff format --check && mypy && lint-imports

lock: setup ## write requirements.lock from the environment
	$(VENV)/bin/pip freeze --all --exclude-editable | grep -v "^pip==" | sed 's/+cpu$$//' > requirements.lock

clean: ## remove results, keep the committed reference
	rm -rf results/smoke results/micro .snakemake

gold: setup ## make the committed gold trajectories again and compare them, bit for bit (minutes)
	snakemake --profile smoke --config suite=gold -- results/gold/gold/sciworld/gold.jsonl
