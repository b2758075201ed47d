#!/usr/bin/env bash
# Prints the path of a Python that can import a package, and installs the package where needed.
#
#   scripts/python.sh PACKAGE VARIABLE CODE
#
# CODE is Python that prints "yes" where the package works. In this order:
#
#   1. $VARIABLE, if set;
#   2. python3 with the wheel pinned in tools/PACKAGE.txt, kept in .tools/PACKAGE.
#
# Everything but the path goes to standard error.
set -euo pipefail

name=$1 variable=$2 code=$3
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/.tools/$name

say() { echo "$name: $*" >&2; }
works() { [[ $("$1" -c "$code" 2>/dev/null) == yes ]]; }

if [[ -n ${!variable:-} ]]; then
  works "${!variable}" || {
    say "$variable=${!variable} is no Python in which $name works"
    exit 1
  }
  echo "${!variable}"
  exit 0
fi

# A wheel is for one version of Python: after another one came, it is installed afresh.
PYTHONPATH=$folder works python3 || rm -f "$folder/$name.txt"
"$root/scripts/wheel.sh" "$root/tools/$name.txt" "$folder"

# The launcher becomes Python itself, so that its process id is Python's.
launcher='#!/bin/sh
PYTHONPATH=$(dirname "$0")/../'$name'${PYTHONPATH:+:$PYTHONPATH} exec python3 "$@"'
python=$root/.tools/bin/$name-python
if [[ ! -x $python || $(<"$python") != "$launcher" ]]; then
  mkdir -p "${python%/*}"
  fresh=$(mktemp "$python.XXXXXX")
  echo "$launcher" >"$fresh"
  chmod 755 "$fresh"
  mv "$fresh" "$python"
fi

# Another caller may be replacing the folder just now.
for try in 1 2 3 4; do
  works "$python" && break
  ((try < 4)) && sleep 1
done || {
  say "it does not work in $(command -v python3), from $folder"
  exit 1
}
echo "$python"
