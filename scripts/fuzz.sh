#!/usr/bin/env bash
# Runs every native fuzz target in the tree for a short while.
#
#   FUZZTIME=5s FUZZBUDGET=90 scripts/fuzz.sh [FOLDER...]
#
# FUZZTIME is the time for each target and FUZZBUDGET the seconds for all of them: with many
# targets each gets an equal, smaller share, at least one second. Building is not counted.
# A FUZZTIME such as 100000x is a number of inputs for each target, whatever time they take.
set -euo pipefail
cd "$(dirname "$0")/.."

each=${FUZZTIME:-5s}
each=${each%s}
budget=${FUZZBUDGET:-90}

mapfile -t targets < <(
  grep -rE --include='*_test.go' --exclude-dir=.tools --exclude-dir=testdata -o '^func Fuzz[A-Za-z0-9_]*' "${@:-.}" |
    sed 's,^\(.*\)/[^/]*:func \(.*\)$,\1 \2,' | sort -u
)
if ((${#targets[@]} == 0)); then
  echo "fuzz: no target in the tree" >&2
  exit 1
fi
if [[ $each == *x ]]; then
  each=${each%x}
  unit=x
else
  unit=s
  share=$((budget / ${#targets[@]}))
  ((share < each)) && each=$share
  ((each < 1)) && each=1
fi

out=$(mktemp)
trap 'rm -f "$out"' EXIT

# run FOLDER TARGET. The fuzzer can report its own time limit as a failure when the limit falls on
# a running input; such a failure names no input and is tried once more.
run() {
  local try
  for try in 1 2; do
    if go test -run='^$' -fuzz="^$2\$" -fuzztime="$each$unit" -fuzzminimizetime=2s "./${1#./}" >"$out" 2>&1; then
      tail -n 1 "$out"
      return 0
    fi
    if grep -q 'Failing input written' "$out" || ! grep -q 'context deadline exceeded' "$out"; then
      break
    fi
  done
  cat "$out"
  return 1
}

failed=()
for target in "${targets[@]}"; do
  read -r folder name <<<"$target"
  echo "fuzz: $folder $name for $each$unit"
  run "$folder" "$name" || failed+=("$folder $name")
done

if ((${#failed[@]} > 0)); then
  printf 'fuzz: failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "fuzz: ${#targets[@]} targets, $each$unit each, no failing input"
