#!/bin/sh
# Creates the virtual environment DIR and installs the pinned requirements into it.
#   envs/make_venv.sh DIR
set -eu
venv=$1
here=$(cd "$(dirname "$0")" && pwd)
python=""
for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || { echo "expected Python 3.11, 3.12 or 3.13 on PATH, found none; install one or set PYTHON" >&2; exit 1; }
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    list=$(mktemp)
    "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])' >"$list"
    "$here/install_system_packages.sh" "$list"
    rm "$list"
fi
"$python" -m venv "$venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Not compiled in advance: most modules, of torch above all, are never imported, and the others are compiled then.
"$venv/bin/python" -m pip install -q --no-compile -c "$here/lock.txt" -r "$here/pipeline.txt" -r "$here/engine.txt" -r "$here/dev.txt"
"$venv/bin/python" -m pip install -q --no-deps -e "$here/.."
