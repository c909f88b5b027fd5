# `make run` is all that a fresh clone needs. Another Python or experiment: make PYTHON=python3.11 CONFIG=configs/quick.yaml run
PYTHON ?= $(or $(shell command -v python3.11),python3)
CONFIG ?=
CORES ?= all

BIN := .venv/bin
INSTALL := -m pip --disable-pip-version-check --quiet install
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) $(if $(CONFIG),--configfile $(CONFIG))
HOST_LOCKS := envs/driver.lock envs/cpu.lock
PEERS := trl trl_older verl
OLDER := .venv-transformers4
BENCH ?=

.PHONY: help venv run run-containers test lint test-peers bench transformers4 apptainer ui lock data clean
.DEFAULT_GOAL := help

help: ## show these targets
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

run: venv ## run config.yaml in this machine's environment
	$(SNAKEMAKE)

run-containers: venv apptainer ## the same in containers; the image is built where it is missing
	$(SNAKEMAKE) --use-singularity

test: lint data ## lint, types and all tests, with a run on the host and one in containers
	@$(MAKE) --no-print-directory apptainer || echo "tests in containers are left out"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: .venv/.dev ## ruff, mypy, snakefmt and Snakemake's own linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

test-peers: $(PEERS:%=.venv/peers/%/.installed) ## recompute the stored vectors with TRL and verl themselves
	@for peer in $(PEERS); do .venv/peers/$$peer/bin/python tests/oracles/recompute/$${peer}_vectors.py || exit 1; done
	@.venv/peers/trl/bin/python tests/oracles/recompute/trl_curves.py

bench: venv $(patsubst %,.venv/peers/%/.installed,trl trl_older) ## training speed beside TRL's and the floor's: make bench BENCH="--rows sft*"
	$(BIN)/python -m bench $(BENCH)

transformers4: $(OLDER)/.installed ## an environment with the CUDA 12.1 image's transformers, for the tests that need it

venv: .venv/.host ## the virtual environment .venv with the pinned packages

apptainer: | .venv/bin/python ## find Apptainer or install a private copy, and link it into .venv/bin
	$(BIN)/python docker/install_apptainer.py

ui: venv ## MLflow's page for all runs, on localhost
	$(BIN)/python -m posttrain ui

lock: .venv/.dev ## write envs/*.lock from envs/*.in
	$(BIN)/python $(INSTALL) uv
	$(BIN)/python envs/lock.py

clean: ## delete results and Snakemake's records; data, images and the environment stay
	rm -rf results .snakemake

data: | .venv/.host
	$(BIN)/dvc pull --quiet

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.host: $(HOST_LOCKS) pyproject.toml | .venv/bin/python
	@echo "installing the packages into .venv (a few minutes, once)"
	$(BIN)/python $(INSTALL) $(addprefix -r ,$(HOST_LOCKS))
	$(BIN)/python $(INSTALL) --no-deps --editable .
	@touch $@

.venv/.dev: envs/dev.lock .venv/.host
	$(BIN)/python $(INSTALL) -r envs/dev.lock
	@touch $@

$(OLDER)/.installed: envs/transformers4.lock
	$(PYTHON) -m venv $(OLDER)
	$(OLDER)/bin/python $(INSTALL) -r $<
	@touch $@

.venv/peers/%/.installed: tests/oracles/recompute/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) -r $<
	@touch $@
