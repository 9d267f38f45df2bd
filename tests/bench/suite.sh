#!/usr/bin/env bash
# suite.sh OUT: every test, repetition and router in turn; writes samples.jsonl, na.tsv, machine.tsv and metrics/ to OUT.
# Then what scale.sh measures, to scale.tsv.
#
# Within a repetition the routers take turns, so that a slow minute of the machine hits all of them. The router under
# test has core $ROUTER_CORE to itself; load client and engines share core $LOAD_CORE.
# REPS=5, TESTS and PEERS choose; QUICK=1 makes one short repetition that shows that everything runs, no more.
set -u
out=$1
mkdir -p "$out/metrics"
touch "$out/samples.jsonl"
# shellcheck source=tests/bench/peers.sh
. "$(dirname "$0")/peers.sh"
# shellcheck source=tests/bench/workloads.sh
. "$here/workloads.sh"

REPS=${REPS:-5}
QUICK=${QUICK:-}
asked="${TESTS:+TESTS=\"$TESTS\" }${PEERS:+PEERS=\"$PEERS\" }"
TESTS=${TESTS:-small c1 c1s c1sq burst p32k_cold p32k_seen p400k_cold p400k_seen small_tls small_h2 small_h2c stream stream_tls stream_h2 head_of_line open_streams many_workers distinct_prompts}
PEERS=${PEERS:-direct nginx haproxy sglang_rr sglang_ca vllm_rr vllm_ca dynamo_rr dynamo_kv dynamo_kv_fast forebay_rr forebay_kv}
[ -z "$QUICK" ] || REPS=1
scales=()
for test in $TESTS; do
  case $test in
    head_of_line | open_streams | many_workers | distinct_prompts) scales+=("$test"); TESTS=$(sed -E "s/ ?\b$test\b//" <<<"$TESTS") ;;
  esac
done

quick='s/--seconds [0-9.]+/--seconds 0.5/; s/--max-tokens 200/--max-tokens 40/; s/--warmup 1000/--warmup 200/'
shorten() { if [ -n "$QUICK" ]; then sed -E "$quick"; else cat; fi; }

machine() { printf '%s\t%s\n' "$1" "$2" >>"$out/machine.tsv"; }
describe_machine() {
  machine date "$(date -u +'%Y-%m-%d %H:%M UTC')"
  machine cpu "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores"
  machine memory "$(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo)"
  machine system "$(. /etc/os-release && echo "$PRETTY_NAME"), kernel $(uname -r)"
  machine "load before" "$(cut -d' ' -f1-3 /proc/loadavg)"
  machine cores "router $router_core, client and engines $load_core"
  machine command "REPS=$REPS ${QUICK:+QUICK=1 }${TOKENIZER:+TOKENIZER=$TOKENIZER }${asked}tests/bench/run.sh"
  machine tokenizer "$tokenizer"
  machine forebay "$(git -C "$root" describe --always --dirty 2>/dev/null), profile $(basename "$bin")"
  machine nginx "$(nginx -v 2>&1 | sed 's|.*/||')"
  machine haproxy "$(haproxy -v 2>/dev/null | sed -n '1s/.*version \([^ ]*\).*/\1/p')"
  local peer
  for peer in sglang vllm dynamo; do
    machine "$peer" "$(cat "$peers/$peer.ok" 2>/dev/null || cat "$peers/$peer.why" 2>/dev/null || echo absent)"
  done
}

# Forebay's processes with TLS run for their tests alone: two gateways at once would both read the engines' events.
start_secure() {
  local peer
  for peer in "${started[@]}"; do
    [ "$(process_of "$peer" "$1")" = "$peer" ] || start_peer "$(process_of "$peer" "$1")"
  done
  return 0
}
stop_secure() { local peer; for peer in "${started[@]}"; do [ "$(process_of "$peer" "$1")" = "$peer" ] || stop "$(process_of "$peer" "$1")"; done; }

wanted() { [[ " $PEERS " == *" $1 "* ]]; }
started=()

# Dynamo's frontends share one mocker, whose pace is fixed when it starts.
start_dynamos() {
  local peer reason
  wanted dynamo_rr || wanted dynamo_kv || wanted dynamo_kv_fast || return 0
  [ -f "$peers/dynamo.why" ] || start_mocker "$1"
  for peer in dynamo_rr dynamo_kv dynamo_kv_fast; do wanted $peer && start_peer $peer && started+=("$peer"); done
  for peer in mocker dynamo_rr dynamo_kv; do
    alive $peer && reason=$(nonlocal $peer) && [ -n "$reason" ] && echo "warning: $peer leaves the loopback: $reason"
  done
  return 0
}
stop_dynamos() {
  local peer kept=()
  for peer in dynamo_rr dynamo_kv dynamo_kv_fast mocker; do stop $peer; done
  for peer in "${started[@]}"; do [[ $peer == dynamo* ]] || kept+=("$peer"); done
  started=("${kept[@]}")
}

start_all() {
  local peer
  start_engines || return 1
  if wanted forebay_kv && ! start_event_engines; then na forebay_kv '*' 'the engines that publish events did not start'; fi
  for peer in $PEERS; do
    [[ $peer == dynamo* ]] && continue
    [ "$peer" = forebay_kv ] && ! alive event_engine && continue
    start_peer "$peer" && started+=("$peer")
  done
  start_dynamos fast
}

# The metrics page around a run tells the report whether the index was hit.
keep_metrics() {
  [ "$1" = forebay_kv ] && [ "$(transport "$2")" = http1 ] || return 0
  curl -s -m 5 "http://127.0.0.1:$(admin_port_of forebay_kv)/metrics" >"$out/metrics/$2.$3.$4"
}

# run_one TEST PEER REP
run_one() {
  local test=$1 peer=$2 rep=$3 watch=() engine=engine words way process
  way=$(transport "$test")
  process=$(process_of "$peer" "$way")
  [ "$peer" = direct ] || watch+=(--process "router=$(pids "$process")")
  [[ $peer == dynamo* ]] && engine=mocker
  [ "$peer" = forebay_kv ] && engine=event_engine
  watch+=(--process "engine=$(pids $engine)")
  read -ra words < <(workload "$test" | shorten)
  keep_metrics "$peer" "$test" "$rep" before
  timeout 180 taskset -c "$load_core" "$bin/lg" --port "$(way_port_of "$peer" "$way")" --model $model --test "$test" --peer "$peer" --rep "$rep" \
    "${words[@]}" "${watch[@]}" >>"$out/samples.jsonl" 2>"$out/lg.err" || na "$peer" "$test" "rep $rep: load client: $(tail -1 "$out/lg.err")"
  keep_metrics "$peer" "$test" "$rep" after
}

# shellcheck disable=SC2086  # one word per router
require_free_ports $PEERS || exit 1
make_certificate || { echo "no certificate: $(tail -1 "$run/openssl.log")" >&2; exit 1; }
trap stop_all EXIT
trap 'exit 130' INT TERM
describe_machine
if [ -n "$TESTS" ]; then
  start_all || { echo "the engines did not start: $(tail -1 "$run/engine.log")" >&2; exit 1; }
  echo "up: ${started[*]}"
  for test in $TESTS; do
    [ "$test" != stream ] || { stop_dynamos; start_dynamos paced; }
    start_secure "$(transport "$test")"
    [[ $test != stream* ]] || pace_engines 20000 10000
    for rep in $(seq "$REPS"); do
      for peer in "${started[@]}"; do
        speaks "$peer" "$(transport "$test")" || continue
        if [ "$peer" = direct ] || alive "$(process_of "$peer" "$(transport "$test")")"; then run_one "$test" "$peer" "$rep"; else na "$peer" "$test" "rep $rep: died"; fi
      done
    done
    stop_secure "$(transport "$test")"
    [[ $test != stream* ]] || pace_engines 0 0
    echo "$(date +%T) $test done, load $(cut -d' ' -f1 /proc/loadavg)"
  done
fi
stop_all
[ ${#scales[@]} = 0 ] || "$here/scale.sh" "$out" "${scales[@]}"
machine "load after" "$(cut -d' ' -f1-3 /proc/loadavg)"
