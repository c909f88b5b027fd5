# `make run` is all that a fresh clone needs. Another Python: make PYTHON=python3.11 run
PYTHON ?= python3
CONFIG ?= config.yaml
CORES ?= all

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) --configfile $(CONFIG)
HOST_LOCKS := envs/driver.lock envs/cpu.lock

.PHONY: run run-containers test lint test-peers apptainer ui lock clean help
.DEFAULT_GOAL := help

help: ## show these targets
	@grep -hE '^[a-z-]+:.*##' Makefile | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

run: .venv/.host ## run config.yaml in this machine's environment
	$(SNAKEMAKE)

run-containers: apptainer ## the same in containers; the image is built where it is missing
	$(SNAKEMAKE) --use-singularity

test: .venv/.dev data lint ## lint, types and all tests, with a run on the host and one in containers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q

lint: .venv/.dev ## ruff, mypy, snakefmt and Snakemake's own linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

apptainer: .venv/.host ## find Apptainer or install a private copy, and link it into .venv/bin
	$(BIN)/python docker/install_apptainer.py

ui: .venv/.host ## MLflow's page for all runs, on localhost
	$(BIN)/python -m posttrain ui

lock: .venv/.dev ## write envs/*.lock from envs/*.in
	$(PIP) install uv
	$(BIN)/python envs/lock.py

clean: ## delete results and Snakemake's own records; data, images and the environment stay
	rm -rf results .snakemake

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.host: $(HOST_LOCKS) pyproject.toml | .venv/bin/python
	@echo "installing the environment (a few minutes, once)"
	$(PIP) install $(addprefix -r ,$(HOST_LOCKS))
	$(PIP) install --no-deps --editable .
	@touch $@

.venv/.dev: envs/dev.lock .venv/.host
	$(PIP) install -r envs/dev.lock
	@touch $@

data: | .venv/.host
	$(BIN)/dvc pull --quiet
