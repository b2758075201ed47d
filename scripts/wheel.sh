#!/usr/bin/env bash
# Installs the wheels pinned in a requirements file into a folder of their own.
#
#   scripts/wheel.sh REQUIREMENTS FOLDER
#
# The folder appears whole or not at all, so several callers may run at once. An existing folder
# that was made from the same requirements is left as it is.
set -euo pipefail

requirements=$1
folder=$2
stamp=$(basename "$requirements")

if cmp -s "$requirements" "$folder/$stamp"; then
  exit 0
fi

say() { echo "wheel: $*" >&2; }

command -v python3 >/dev/null || {
  say "python3 is needed to install $requirements, and is not on PATH"
  exit 1
}

mkdir -p "$(dirname "$folder")"
fresh=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$fresh"' EXIT

# Some distributions ship Python without pip, others without the means to make a virtual environment.
python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then
  if ! python3 -m venv "$fresh/venv" >/dev/null 2>&1; then
    say "python3 has neither pip nor ensurepip: install the package python3-pip or python3-venv"
    exit 1
  fi
  python=$fresh/venv/bin/python
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
say "installing $(sed -n 's/^\([a-z].*==[^ ]*\).*/\1/p' "$requirements" | tr '\n' ' ')into $folder"
"$python" -m pip install --quiet --no-deps --no-compile --only-binary=:all: --require-hashes \
  --target "$fresh/wheel" -r "$requirements" >&2 || {
  say "cannot install $requirements; is there a wheel for $(uname -s)/$(uname -m), and is the package index reachable?"
  exit 1
}
cp "$requirements" "$fresh/wheel/$stamp"
chmod 755 "$fresh/wheel"

rm -rf "$folder"
mv -T "$fresh/wheel" "$folder" 2>/dev/null || mv "$fresh/wheel" "$folder"
