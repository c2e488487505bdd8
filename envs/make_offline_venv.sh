#!/bin/sh
# Creates the virtual environment VENV from wheels of make_wheelhouse.sh, on top of the host's own packages.
#   envs/make_offline_venv.sh VENV WHEELS [PYTHON]
set -eu
venv=$1
wheels=$2
python=${3:-python3}
here=$(cd "$(dirname "$0")/.." && pwd)
"$python" -m venv --system-site-packages "$venv"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# PYTHON may itself belong to a virtual environment, whose packages a nested one does not see.
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/host.pth"
"$venv/bin/python" -m pip install -q --no-compile --no-index --no-deps --ignore-installed --disable-pip-version-check "$wheels"/*.whl
echo "$here/workflow" >"$packages/draftbench.pth"
"$venv/bin/python" -c 'import draftbench, numpy, snakemake, torch; print("snakemake", snakemake.__version__, "torch", torch.__version__)'
