#!/usr/bin/env bash
# Prints the folder of the routers that `make bench` measures beside Sluice, and installs them where needed: the wheels
# pinned in tools/routers.txt, kept in .tools/routers. Where there are none for the platform, or the package index cannot be
# reached, it says so and fails; the benchmark goes on without them.
#
# Everything but the path goes to standard error.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/.tools/routers

say() { echo "routers: $*" >&2; }

"$root/scripts/wheel.sh" "$root/tools/routers.txt" "$folder" || {
  say "not installed: the benchmark goes on without them"
  exit 1
}
PYTHONPATH=$folder python3 -c 'import sglang_router.router, vllm_router.router' >&2 || {
  say "python3 cannot load what is in $folder: the benchmark goes on without them"
  exit 1
}
echo "$folder"
