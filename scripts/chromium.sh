#!/usr/bin/env bash
# Prints the path of a Chromium: $SLUICE_CHROMIUM, or one on PATH. On Debian and Ubuntu, where root may install packages, the
# distribution's is installed if there is none. Exit code 2: there is none, and it cannot be had here.
#
# Everything but the path goes to standard error.
set -euo pipefail

say() { echo "chromium: $*" >&2; }

look() {
  local name
  for name in "${SLUICE_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
    if [ -n "$name" ] && command -v "$name" 2>/dev/null; then return 0; fi
  done
  return 1
}

look && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  say "installing the distribution's package"
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium fonts-liberation; } >&2 || {
    say "apt-get could not install it"
    exit 1
  }
  look && exit 0
fi
say "none found: install chromium (apt-get install chromium, dnf install chromium, brew install --cask chromium), or set SLUICE_CHROMIUM"
exit 2
