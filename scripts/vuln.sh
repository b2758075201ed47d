#!/usr/bin/env bash
# Looks for known vulnerabilities in what the binary and the tests are built of.
#
#   VULNDB=URL scripts/vuln.sh GOVULNCHECK
#
# VULNDB is the database to ask, https:// or file://; by default the Go project's. Exits with 3 where the code calls
# something vulnerable, and with 0 where the database cannot be reached, having said so: that is no fault of the code.
set -euo pipefail
cd "$(dirname "$0")/.."
govulncheck=$1
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# All packages, always: the commands are called by reflection, so that from main alone nothing seems to be reached. The
# functions that a package exports count as reached too.
code=0
"$govulncheck" ${VULNDB:+-db "$VULNDB"} -test ./... 2>"$out" || code=$?
if ((code != 0)) && grep -q 'fetching vulnerabilities' "$out"; then
  echo "vuln: NOT CHECKED: the vulnerability database cannot be reached from here:" >&2
  sed 's/^/vuln:   /' "$out" >&2
  echo "vuln: run it again with a network, or with VULNDB set to a copy of the database (file:// or https://)" >&2
  exit 0
fi
cat "$out" >&2
exit "$code"
