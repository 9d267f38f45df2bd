#!/usr/bin/env bash
# Runs every fuzz target for EACH seconds (120), on nightly. New inputs go to fuzz/found (not committed), a failing one to
# fuzz/found/TARGET-crash-…; committed ones (fuzz/corpus) are only read. TARGETS="a b" chooses.
# The last line is `RESULT targets=… failed=…`; the exit status is not zero when a check failed.
set -eu
cd "$(dirname "$0")"
host=$(rustc -vV | sed -n 's/^host: //p')
# What cargo-fuzz sets: edge counters that libFuzzer steers by, and the operands of comparisons.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
cargo +nightly build --release --target "$host" --bins
count=0
failed=
for target in ${TARGETS:-$(ls corpus)}; do
  mkdir -p "found/$target"
  count=$((count + 1))
  echo "$target"
  "target/$host/release/$target" -max_total_time="${EACH:-120}" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="found/$target-" "found/$target" "corpus/$target" 2>"found/$target.log" ||
    { failed="$failed $target"; tail -30 "found/$target.log"; }
  sed -n 's/^stat::number_of_executed_units: */  runs: /p; s/^stat::peak_rss_mb: */  peak MiB: /p' "found/$target.log"
done
echo "RESULT targets=$count failed=${failed:-none}"
[ -z "$failed" ]
