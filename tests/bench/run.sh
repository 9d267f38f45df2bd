#!/usr/bin/env bash
# The whole proxy benchmark: builds, installs the peers, runs the suite, prints the report; its last line is `RESULT …`.
#
# REPS=5 repetitions (about an hour), QUICK=1 one short one (about 8 minutes, numbers are noise). A full run also replaces
# the benchmark's section of RESULTS.md; one with another TOKENIZER (llama3) that tokenizer's. Survives a closed terminal as `nohup tests/bench/run.sh >bench.log &`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export BIN_DIR=${BIN_DIR:-$root/target/dist}
out=${OUT:-$here/.peers/out/$(date -u +%Y%m%d-%H%M%S)}

cd "$root"
[ -n "${NO_BUILD:-}" ] || cargo build --locked --profile dist --workspace --bin forebay --bin forebay-engine --bin lg --bin bench-report
"$here/install_peers.sh"
mkdir -p "$out"
"$here/suite.sh" "$out"
"$BIN_DIR/bench-report" "$out" >"$out/report.md"
[ -n "${QUICK:-}" ] || "$here/splice.sh" "proxy benchmark${TOKENIZER:+ $TOKENIZER}" "$out/report.md"
cat "$out/report.md"
