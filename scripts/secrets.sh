#!/usr/bin/env bash
# Looks for secrets in the working tree and in all that was committed. Needs no network.
#
#   scripts/secrets.sh GITLEAKS
set -euo pipefail
cd "$(dirname "$0")/.."
gitleaks=$1

scan() { "$gitleaks" "$@" --config .gitleaks.toml --no-banner --no-color --redact --verbose --log-level warn; }

# A scan that finds nothing says nothing unless one that must find something does: of a token made up here, in two parts
# so that this file is not a finding.
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
printf 'token = "ghp_%s"\n' "x7Qd9Lk2Vb5Zt8Wm""3Rf6Yh1Nc4Js0Gp7Ae2K" >"$planted/settings.txt"
if scan dir "$planted" >/dev/null 2>&1; then
  echo "secrets: a planted token is not found: .gitleaks.toml lets everything pass" >&2
  exit 1
fi

report() {
  echo "secrets: found in $1; change the secret first, for it is known, then take it out" >&2
  exit 1
}
scan dir . || report "the working tree"
if git rev-parse --git-dir >/dev/null 2>&1; then
  scan git . || report "what was committed"
  echo "secrets: none in the working tree, none in $(git rev-list --count HEAD) commits"
else
  echo "secrets: none in the working tree; this is no clone, so there is no history to look at"
fi
