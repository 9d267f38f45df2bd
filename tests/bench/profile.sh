#!/usr/bin/env bash
# Where forebay's time goes: samples the pinned router while a test runs, folds the symbols by step, prints markdown.
#
# profile.sh [POLICY] (kv, or round-robin); TESTS and SECONDS_EACH choose. Needs `perf` and a built BIN_DIR. With KEEP=1
# the output also replaces its section of RESULTS.md.
# Time is self time: what a step makes the kernel or the allocator do is counted there, not at the step.
set -eu
# shellcheck source=tests/bench/peers.sh
. "$(dirname "$0")/peers.sh"
# shellcheck source=tests/bench/workloads.sh
. "$here/workloads.sh"
policy=${1:-kv}
TESTS=${TESTS:-small p32k_cold p32k_seen p400k_cold p400k_seen}
SECONDS_EACH=${SECONDS_EACH:-4}
out=${OUT:-$peers/profile}
mkdir -p "$out"
peer=forebay_kv
[ "$policy" = round-robin ] && peer=forebay_rr
command -v perf >/dev/null || { echo "perf is not installed (Debian: linux-perf)" >&2; exit 1; }

# Symbol -> step, first match wins. Reads "percent TAB object TAB symbol".
fold() {
  awk -F '\t' '
    function step(object, symbol) {
      if (object ~ /kernel/) {
        if (symbol ~ /copy_(to|from)|_copy_|memcpy|rep_movs/) return "kernel: copy"
        if (symbol ~ /tcp|ip_|sock|skb|inet|napi|net_|loopback|dev_|qdisc/) return "kernel: TCP"
        if (symbol ~ /epoll|ep_|poll|wait|wake|sched|switch|futex|timer|idle/) return "kernel: wait and wake"
        return "kernel: other"
      }
      if (symbol ~ /fastokens|tokenizers|pcre2|onig|daachorse|forebay::tokenize|minijinja/) return "tokenize"
      if (symbol ~ /forebay::parse|serde_json/) return "parse"
      if (symbol ~ /xxh|forebay_routing::(block|hash)/) return "hash"
      if (symbol ~ /forebay_routing|forebay::fleet/) return "score, index, fleet"
      if (symbol ~ /forebay::stream/) return "stream"
      if (symbol ~ /forebay::(observe|admin)|prometheus/) return "observe"
      if (symbol ~ /forebay::(signal|events)|zmq|rmp/) return "events in"
      if (symbol ~ /forebay::(accept|dispatch|serve)|pingora|httparse|http::/) return "HTTP: accept, dispatch"
      if (symbol ~ /tokio|mio|parking_lot|futures/) return "async runtime"
      if (symbol ~ /malloc|free|realloc|calloc|mem(set|move|cpy)|alloc/) return "allocator, memcpy"
      return "other"
    }
    { share = $1; sub(/ *%/, "", share); sum[step($2, $3)] += share }
    END { for (name in sum) printf "%.1f\t%s\n", sum[name], name }' | sort -rn
}

profile() {
  local test=$1 data="$out/$1.perf" pid words load
  pid=$(cat "$run/$peer.pid")
  read -ra words < <(workload "$test" | sed -E 's/--seconds [0-9.]+//')
  # The load outlives the samples; both ends of the run are left out.
  taskset -c "$load_core" "$bin/lg" --port "$(port_of $peer)" --model $model --test "$test" --peer "$peer" --rep 99 "${words[@]}" \
    --seconds $((SECONDS_EACH + 3)) --process "router=$pid" >"$out/$test.json" &
  load=$!
  sleep 2
  perf record -q -e cpu-clock -F 1999 -p "$pid" -o "$data" -- sleep "$SECONDS_EACH" >/dev/null 2>&1
  wait "$load"
  perf report -i "$data" --stdio --no-children -F overhead,dso,symbol -t $'\t' 2>/dev/null | grep -v '^#' | grep -v '^ *$' |
    sed -E 's/^ +//; s/ *\t */\t/g; s/\[[k.]\] //' >"$out/$test.symbols"
  printf '\n**%s**\n\n| share of CPU | step |\n|---|---|\n' "$test"
  fold <"$out/$test.symbols" | awk -F '\t' '{printf "| %s %% | %s |\n", $1, $2}'
  printf '\n| self | object | symbol |\n|---|---|---|\n'
  head -15 "$out/$test.symbols" | awk -F '\t' '{gsub(/\|/, "/", $3); printf "| %s | %s | `%s` |\n", $1, $2, substr($3, 1, 110)}'
}

require_free_ports $peer
trap stop_all EXIT
trap 'exit 130' INT TERM
start_engines
[ "$peer" = forebay_rr ] || start_event_engines
start_peer $peer
report() {
  printf 'Self time of the router on its pinned core, policy `%s`, %s s of each test at 1,999 samples/s.\n' "$policy" "$SECONDS_EACH"
  for test in $TESTS; do profile "$test"; done
}
report | tee "$out/profile.md"
[ -z "${KEEP:-}" ] || "$here/splice.sh" profile "$out/profile.md"
