# Everything a fresh machine needs: Python 3.11 and make. The environment lives in .venv.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
DOCS_VENV := .venv_docs
SHELL := /bin/bash
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Each job is a process of its own: without cached bytecode it compiles the kit again.
export PYTHONDONTWRITEBYTECODE :=
# What `time` prints: wall and CPU minutes.
export TIMEFORMAT := %lR wall, %lU + %lS CPU

.PHONY: help setup mysql smoke gpu real smoke-methods smoke-agent-data micro micro-methods gold test test-slow test-slurm mutants cluster images docs lint lock clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: $(STAMP) ## make the environment

$(STAMP): pyproject.toml requirements.lock envs_setup/bfcl.lock
	$(PYTHON) -m venv $(VENV)
	envs_setup/install.sh $(VENV)
	touch $@

mysql: ## unpack the server of InterCodeSQL without root; a run does it before the first job that needs one
	envs_setup/mysql.sh

smoke: setup ## the whole paper in miniature, and a pretrained model before and after fine-tuning; without InterCodeSQL where no server can be had
	if envs_setup/mysql.sh; \
	then time snakemake --profile smoke && time snakemake --profile smoke --config suite=smoke_real machine=cpu_pretrained; \
	else time snakemake --profile smoke --config 'without=[intercode_sql]'; fi
	@cat results/smoke/paper/table1/table1.md results/smoke/paper/summary/summary.md
	@! envs_setup/mysql.sh 2> /dev/null || cat results/smoke_real/paper/table1/table1.md
	coevolve view --suite smoke
	@echo "Report page: results/smoke/paper/page/report.html"

gpu: ## a GPU's first ten minutes: is it right, is it fast, does the plan know it (needs torch and transformers, no network)
	PYTHONPATH=. $(or $(wildcard $(VENV)/bin/python),$(PYTHON)) benchmarks/gpu.py

real: setup ## SFT, ETO and co-evolving with a pretrained model of 135 million parameters; measured: one to two CPU-hours an environment
	snakemake --profile smoke --config suite=real machine=cpu_pretrained
	@cat results/real/paper/table1/table1.md results/real/paper/summary/summary.md

smoke-methods: setup ## every method once, small: Best-of-N, RFT, PPO, GRPO, IPR and the rest
	snakemake --profile smoke --config suite=smoke_methods
	@cat results/smoke_methods/paper/table1/table1.md results/smoke_methods/paper/summary/summary.md
	coevolve view --suite smoke_methods
	@echo "Report page: results/smoke_methods/paper/page/report.html"

micro: setup ## the science in miniature: 5 seeds, 3 iterations
	snakemake --profile smoke --config suite=micro
	@cat results/micro/paper/table1/table1.md results/micro/paper/summary/summary.md
	coevolve view --suite micro
	@echo "Report page: results/micro/paper/page/report.html"

micro-methods: setup ## every method with five seeds, on WebShop
	snakemake --profile smoke --config suite=micro_methods
	@cat results/micro_methods/paper/table1/table1.md results/micro_methods/paper/summary/summary.md
	coevolve view --suite micro_methods
	@echo "Report page: results/micro_methods/paper/page/report.html"

smoke-agent-data: setup ## the second paper in miniature: three rounds of GRPO on tasks that signals lead to
	time snakemake --profile smoke --config suite=smoke_agent_data -- all
	@cat results/smoke_agent_data/paper/table1/table1.md results/smoke_agent_data/task_growth/growth.md

test: setup ## all tests but the slow ones; prints the ten slowest; skips those of InterCodeSQL where no server can be had
	-envs_setup/mysql.sh
	time pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10 -m "not slow"

test-slow: setup ## the slow tests only
	-envs_setup/mysql.sh
	pytest -m slow --ignore tests/slurm

test-slurm: setup ## the DAG on a real Slurm of two nodes, and what goes wrong there (root, Debian)
	pytest -m slow tests/slurm

mutants: setup mysql ## wrong edits: those of past defects, then a random sample of all code (hours; goes on where it ended)
	time python tests/mutants/run.py
	time python tests/mutants/sample.py
	time python tests/mutants/sample.py --slow tests/run/test_launch.py tests/run/test_online_launch.py

# Variables of `make cluster`, all optional: MACHINE, PARTITION, CPU_PARTITION, ACCOUNT, QOS, GPU, EXTRA, SCRATCH, MIRROR, SUITE, CONTAINERS
SITE := MACHINE PARTITION CPU_PARTITION ACCOUNT QOS GPU EXTRA SCRATCH MIRROR SUITE CONTAINERS
option = $(if $(filter command,$(origin $(1))),--$(shell echo $(1) | tr A-Z_ a-z-)='$($(1))')

cluster: setup ## set this Slurm cluster up, from its login node; then: snakemake --profile slurm
	coevolve cluster $(foreach name,$(SITE),$(call option,$(name)))

images: setup ## build the container images and name them in containers/images.lock (needs Apptainer)
	python containers/build.py

docs: $(DOCS_VENV)/.installed ## make build/site, the pages as a site with the interfaces; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict
	@echo "build/site/index.html; with search: python -m http.server --directory build/site"

$(DOCS_VENV)/.installed: envs_setup/docs.lock
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --no-deps --requirement envs_setup/docs.lock
	touch $@

lint: setup ## what needs no run: ruff, formatting, types, import layers, links of the pages
	ruff check && ruff format --check && mypy && lint-imports && pytest -q tests/docs/test_pages.py

lock: setup ## write requirements.lock from the environment
	$(VENV)/bin/python -m pip freeze --all --exclude-editable | grep -Ev "^(pip==|bfcl[-_]eval)" | sed 's/+cpu$$//' > requirements.lock

clean: ## remove the results of the smoke and micro suites, and .snakemake; other suites' results stay
	rm -rf results/smoke results/smoke_real results/smoke_methods results/micro results/micro_methods results/smoke_agent_data .snakemake

gold: setup ## make the committed gold trajectories again and compare them, bit for bit (minutes)
	snakemake --profile smoke --config suite=gold -- results/gold/gold/sciworld/gold.jsonl
