#!/usr/bin/env bash
# Runs the tests that the race detector makes impossible, or too slow to run whole, without it: those that name the
# constant raceEnabled. Tests of test/chaos, which do so too, have `make chaos-volume`.
#
#   scripts/norace.sh [FLAG...]    flags are go test's
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t found < <(
  grep -rl --include='*_test.go' --exclude-dir=.tools --exclude-dir=testdata --exclude-dir=chaos 'raceEnabled' . |
    xargs awk '
      /^func / { name = "" }
      /^func Test/ { name = $2; sub(/\(.*/, "", name) }
      /raceEnabled/ && !/^const raceEnabled/ { print FILENAME, name == "" ? "line:" FNR : name }' | sort -u
)
if ((${#found[@]} == 0)); then
  echo "norace: no test names raceEnabled" >&2
  exit 1
fi

folders=() names=()
for line in "${found[@]}"; do
  read -r file name <<<"$line"
  if [[ $name == line:* ]]; then
    echo "norace: $file:${name#line:}: raceEnabled is named outside of a test, which hides the test from here" >&2
    exit 1
  fi
  folders+=("${file%/*}")
  names+=("$name")
done
mapfile -t folders < <(printf '%s\n' "${folders[@]}" | sort -u)
mapfile -t names < <(printf '%s\n' "${names[@]}" | sort -u)

echo "norace: ${#found[@]} tests in ${#folders[@]} packages"
CGO_ENABLED=0 go test -count=1 "$@" -run "^($(IFS='|'; echo "${names[*]}"))\$" "${folders[@]}"
