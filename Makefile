VENV ?= .venv
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
STAMP := $(VENV)/.installed
SMK := Snakefile $(wildcard workflow/rules/*.smk)

.PHONY: report test check fix test-gpu dryrun setup tex help

report: setup tex  ## the default campaign, from nothing to report/bench.pdf
	snakemake --cores 1 report/bench.pdf

setup: $(STAMP)  ## .venv with the pinned requirements

$(STAMP): envs/pipeline.txt envs/engine.txt envs/dev.txt envs/lock.txt envs/make_venv.sh pyproject.toml
	envs/make_venv.sh $(VENV)
	touch $@

tex:
	envs/install_system_packages.sh envs/apt.txt

test: setup tex  ## the tests that need no GPU, but for the long ones (pytest -m slow)
	envs/install_system_packages.sh envs/apt-test.txt
	python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"

test-gpu: setup  ## the tests that need one
	python -m pytest -m gpu

check: setup  ## formatting, lint, types, the workflow's own lint
	ruff format --check .
	ruff check .
	mypy
	snakefmt --check $(SMK)
	snakemake --lint

fix: setup  ## format, and mend what lint can
	ruff format .
	ruff check --fix .
	snakefmt $(SMK)

dryrun: setup  ## what is pending of the default campaign
	snakemake -n

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 10
