#!/usr/bin/env bash
# Prints the path of a Python that can import zmq, and installs pyzmq where needed. In this order:
#
#   1. $SLUICE_PYZMQ, if set;
#   2. python3 with the wheel pinned in tools/pyzmq.txt, kept in .tools/pyzmq.
#
# Everything but the path goes to standard error.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/.tools/pyzmq

say() { echo "pyzmq: $*" >&2; }
imports() { [[ $("$1" -c 'import zmq; print(zmq.zmq_version_info()[0])' 2>/dev/null) == 4 ]]; }

if [[ -n ${SLUICE_PYZMQ:-} ]]; then
  imports "$SLUICE_PYZMQ" || {
    say "SLUICE_PYZMQ=$SLUICE_PYZMQ is no Python that imports zmq"
    exit 1
  }
  echo "$SLUICE_PYZMQ"
  exit 0
fi

# A wheel is for one version of Python: after another one came, it is installed afresh.
PYTHONPATH=$folder imports python3 || rm -f "$folder/pyzmq.txt"
"$root/scripts/wheel.sh" "$root/tools/pyzmq.txt" "$folder"

# The launcher becomes Python itself, so that its process id is Python's.
launcher='#!/bin/sh
PYTHONPATH=$(dirname "$0")/../pyzmq${PYTHONPATH:+:$PYTHONPATH} exec python3 "$@"'
python=$root/.tools/bin/pyzmq-python
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
  say "$(command -v python3) cannot import zmq from $folder"
  exit 1
}
echo "$python"
