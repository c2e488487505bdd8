#!/bin/sh
# Installs the Debian or Ubuntu packages listed in the given files, if one is missing and this user may; elsewhere
# it names them, and what needs their programs says so where they are missing.
#   envs/install_system_packages.sh envs/apt.txt [envs/apt-test.txt]
set -eu
packages=$(sed -e 's/#.*//' "$@" | tr -s '[:space:]' ' ')
missing=""
command -v dpkg-query >/dev/null || { echo "not a Debian or Ubuntu: the programs of these packages come from elsewhere: $packages"; exit 0; }
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    echo "expected these system packages, but they are missing and this user may not install them:$missing; run: sudo apt-get install$missing" >&2
    exit 1
fi
echo "installing:$missing"
$as_root apt-get update -qq
# shellcheck disable=SC2086 # a list of names
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
