#!/bin/sh
# Fetches the wheels of measure.txt for a Linux x86-64 host that reaches no package index, numpy left out.
#   envs/make_wheelhouse.sh DIR PYTHON_VERSION        for example: envs/make_wheelhouse.sh wheels 3.12
# There, in a copy of this repository:
#   envs/make_offline_venv.sh .venv DIR
set -eu
wheels=$1
version=$2
here=$(cd "$(dirname "$0")" && pwd)
tag=cp$(echo "$version" | tr -d .)
platforms=""
for platform in manylinux_2_39 manylinux_2_34 manylinux_2_31 manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux1; do
    platforms="$platforms --platform ${platform}_x86_64"
done
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$wheels"
# Published as source only; pure Python, so a wheel built here serves everywhere.
python3 -m pip wheel -q --no-deps -c "$here/lock.txt" -w "$wheels" connection_pool
# shellcheck disable=SC2086 # a list of options
python3 -m pip download -q --only-binary=:all: --python-version "$version" --implementation cp --abi "$tag" --abi abi3 --abi none \
    $platforms --platform any --find-links "$wheels" -c "$here/lock.txt" -d "$wheels" -r "$here/measure.txt"
rm -f "$wheels"/numpy-*.whl
# Converts models. The host's own would do, but that it agrees with the packages above is luck.
python3 -m pip download -q --no-deps --only-binary=:all: -c "$here/lock.txt" -d "$wheels" transformers
du -sh "$wheels"
