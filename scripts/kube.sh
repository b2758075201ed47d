#!/usr/bin/env bash
# Prints the folder that holds a kube-apiserver and an etcd to test against, and builds them where needed. In this order:
#
#   1. $SLUICE_KUBE, if set: a folder with both;
#   2. those pinned in test/kube/binaries, built from their Go modules and kept in .tools/kube.
#
# Everything but the path goes to standard error.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
pinned=$root/test/kube/binaries
built=$root/.tools/kube

say() { echo "kube: $*" >&2; }

if [[ -n ${SLUICE_KUBE:-} ]]; then
  for program in kube-apiserver etcd; do
    [[ -x $SLUICE_KUBE/$program ]] || {
      say "SLUICE_KUBE=$SLUICE_KUBE holds no $program"
      exit 1
    }
  done
  echo "$SLUICE_KUBE"
  exit 0
fi

# build PROGRAM PACKAGE; what go build leaves at the path is whole: it renames.
build() {
  [[ -x $built/$1 && ! $pinned/go.sum -nt $built/$1 ]] && return
  say "building $1 from test/kube/binaries: both together take about 3 minutes, once"
  local begun=$SECONDS
  CGO_ENABLED=0 "${GO:-go}" build -C "$pinned" -trimpath -ldflags '-s -w' -o "$built/$1" "$2" >&2 &
  local running=$!
  trap 'kill "$running" 2>/dev/null || true' EXIT INT TERM
  while kill -0 "$running" 2>/dev/null; do
    sleep 1
    (((SECONDS - begun) % 30)) || say "building $1 since $((SECONDS - begun)) s"
  done
  wait "$running"
  trap - EXIT INT TERM
  touch "$built/$1"
}

mkdir -p "$built"
build etcd go.etcd.io/etcd/server/v3
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
echo "$built"
