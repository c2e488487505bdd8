#!/usr/bin/env bash
# Run by Snakemake inside the environment of workflow.yaml, in the repository.
set -euo pipefail
python -m pip install --constraint envs/lock.txt --requirement envs/pipeline.txt --requirement envs/engine.txt --editable .
