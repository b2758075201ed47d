#!/usr/bin/env bash
# Prints the path of a Python that can import duckdb, and installs duckdb where needed. In this order:
#
#   1. $SLUICE_DUCKDB, if set;
#   2. python3 with the wheel pinned in tools/duckdb.txt, kept in .tools/duckdb.
#
# Everything but the path goes to standard error.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/.tools/duckdb

say() { echo "duckdb: $*" >&2; }
imports() { [[ $("$1" -c 'import duckdb; print(duckdb.sql("select 42").fetchall()[0][0])' 2>/dev/null) == 42 ]]; }

if [[ -n ${SLUICE_DUCKDB:-} ]]; then
  imports "$SLUICE_DUCKDB" || {
    say "SLUICE_DUCKDB=$SLUICE_DUCKDB is no Python that imports duckdb"
    exit 1
  }
  echo "$SLUICE_DUCKDB"
  exit 0
fi

# A wheel is for one version of Python: after another one came, it is installed afresh.
PYTHONPATH=$folder imports python3 || rm -f "$folder/duckdb.txt"
"$root/scripts/wheel.sh" "$root/tools/duckdb.txt" "$folder"

# The launcher becomes Python itself, so that its process id is Python's.
launcher='#!/bin/sh
PYTHONPATH=$(dirname "$0")/../duckdb${PYTHONPATH:+:$PYTHONPATH} exec python3 "$@"'
python=$root/.tools/bin/duckdb-python
if [[ ! -x $python || $(<"$python") != "$launcher" ]]; then
  mkdir -p "${python%/*}"
  fresh=$(mktemp "$python.XXXXXX")
  echo "$launcher" >"$fresh"
  chmod 755 "$fresh"
  mv "$fresh" "$python"
fi

# Another caller may be replacing the folder just now.
for try in 1 2 3 4; do
  imports "$python" && break
  ((try < 4)) && sleep 1
done || {
  say "$(command -v python3) cannot import duckdb from $folder"
  exit 1
}
echo "$python"
