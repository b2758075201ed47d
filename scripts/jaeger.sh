#!/usr/bin/env bash
# Prints the path of a Jaeger to run, and builds it where needed. In this order:
#
#   1. $SLUICE_JAEGER, if set;
#   2. a jaeger on PATH, of Jaeger's second line, which is configured by a file;
#   3. the one pinned in tools/jaeger, built from its Go module and kept in .tools/bin. It has the whole API, and no pages:
#      these are not part of the module.
#
# Everything but the path goes to standard error.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
built=$root/.tools/bin/jaeger

say() { echo "jaeger: $*" >&2; }

second_line() { [[ $("$1" --help 2>&1) == *"--config"* ]]; }

if [[ -n ${SLUICE_JAEGER:-} ]]; then
  second_line "$SLUICE_JAEGER" || {
    say "SLUICE_JAEGER=$SLUICE_JAEGER is no Jaeger that takes --config"
    exit 1
  }
  echo "$SLUICE_JAEGER"
  exit 0
fi

if found=$(command -v jaeger); then
  if second_line "$found"; then
    echo "$found"
    exit 0
  fi
  say "$found takes no --config: left out"
fi

if [[ ! -x $built || $root/tools/jaeger/go.sum -nt $built ]]; then
  say "building Jaeger from tools/jaeger: this takes about 5 minutes, and is done once; a jaeger on PATH is used instead"
  mkdir -p "$(dirname "$built")"
  CGO_ENABLED=0 "${GO:-go}" build -C "$root/tools/jaeger" -trimpath -o "$built" github.com/jaegertracing/jaeger/cmd/jaeger >&2 &
  build=$!
  trap 'kill "$build" 2>/dev/null || true' EXIT INT TERM
  begun=$SECONDS
  while kill -0 "$build" 2>/dev/null; do
    sleep 1
    (((SECONDS - begun) % 30)) || say "building since $((SECONDS - begun)) s"
  done
  wait "$build"
  trap - EXIT INT TERM
  touch "$built"
fi
echo "$built"
