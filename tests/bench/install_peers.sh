#!/usr/bin/env bash
# Installs the proxies that Forebay is measured against into tests/bench/.peers (git-ignored). Idempotent.
#
# A peer that does not install is no error: `.peers/NAME.why` says why in one line, and the report prints `na` with it.
# Installed peers leave `.peers/NAME.ok` with their version. PEERS_DIR moves the folder.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
peers=${PEERS_DIR:-$here/.peers}
python=${PYTHON:-python3}
mkdir -p "$peers"

# attempt NAME VERSION COMMAND...: runs COMMAND once for this version and records how it went.
attempt() {
  local name=$1 version=$2 log="$peers/$1.log"
  shift 2
  if [ "$(cat "$peers/$name.ok" 2>/dev/null)" = "$version" ]; then
    echo "$name $version: already there"
    return 0
  fi
  rm -f "$peers/$name.ok" "$peers/$name.why"
  echo "$name $version: installing (log: $log)"
  if "$@" >"$log" 2>&1; then
    echo "$version" >"$peers/$name.ok"
  else
    local reason
    reason=$(grep -iE 'error|unable|not found|failed' "$log" | tail -1)
    echo "did not install: ${reason:-$(tail -1 "$log")}" | cut -c1-200 >"$peers/$name.why"
    echo "$name: $(cat "$peers/$name.why")"
  fi
}

# Debian starts a service on install unless policy-rc.d forbids it; a stranger's port 80 is not ours to take.
debian_package() {
  command -v "$1" >/dev/null && return 0
  command -v apt-get >/dev/null || { echo "error: no $1 and no apt-get: install $1 by hand"; return 1; }
  [ "$(id -u)" = 0 ] || { echo "error: no $1 and not root: run apt-get install $1"; return 1; }
  local policy=/usr/sbin/policy-rc.d made=0 rc=0
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && made=1
  fi
  { apt-get update -q && apt-get install -y -q --no-install-recommends "$1"; } || rc=1
  [ $made = 0 ] || rm -f $policy
  return $rc
}

venv() {
  local dir="$peers/$1"
  shift
  rm -rf "$dir"
  "$python" -m venv "$dir" && "$dir/bin/pip" install -q --disable-pip-version-check "$@"
}

# `ai-dynamo` pins a package that the registry holds only as a stub (needed by its planner alone), so the wheels go in
# without their dependencies and what the frontend, the mocker and the KV router import follows.
dynamo() {
  venv dynamo --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1 &&
    "$peers/dynamo/bin/pip" install -q --disable-pip-version-check 'pydantic>=2.10.6,<=2.13.5' 'uvloop>=0.21' 'aiohttp<4' \
      'msgspec>=0.19' 'prometheus-client<1.0,>=0.23.1' 'pyzmq>=26' tqdm 'transformers>=4.56' 'typing-extensions>=4.10' \
      'zstandard<1.0,>=0.23' certifi &&
    "$peers/dynamo/bin/python" -c 'import dynamo.frontend, dynamo.mocker'
}

# The model directory that every tokenising peer reads: Qwen3's real tokenizer and the two files Dynamo wants beside it.
model() {
  local from="$root/.cache/tokenizers/qwen3" to="$peers/model"
  [ -f "$from/tokenizer.json" ] || { echo "error: no $from/tokenizer.json: run deploy/setup.sh"; return 1; }
  mkdir -p "$to" && cp "$from"/tokenizer.json "$from"/tokenizer_config.json "$here"/model/*.json "$to"/
}

attempt nginx debian debian_package nginx
attempt haproxy debian debian_package haproxy
attempt model qwen3 model
attempt sglang 0.3.2 venv sglang sglang-router==0.3.2
attempt vllm 0.1.17 venv vllm vllm-router==0.1.17
attempt dynamo 1.6.1 dynamo
exit 0
