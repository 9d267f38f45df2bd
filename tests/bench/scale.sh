#!/usr/bin/env bash
# scale.sh OUT NAME...: what no repetition of one test shows. A line of OUT/scale.tsv for each figure (see report/scale.rs).
#
#   head_of_line      p99 of small chats while prompts of 400 KB are tokenised, over their p99 on a quiet router
#   open_streams      memory of a router with 8,000 open streams, for each
#   many_workers      CPU of a request in front of 10,000 workers, over that in front of 4; what their scrapes cost
#   distinct_prompts  memory after 100,000 prompts that share nothing
#
# Each starts its own engines and router on the suite's cores and ports. QUICK=1 shows that it runs; its numbers are noise.
set -u
out=$1
shift
# shellcheck source=tests/bench/peers.sh
. "$(dirname "$0")/peers.sh"
# shellcheck source=tests/bench/workloads.sh
. "$here/workloads.sh"
QUICK=${QUICK:-}
pick() { if [ -n "$QUICK" ]; then echo "$2"; else echo "$1"; fi; }

# figure KEY VALUE most|least|- BOUND WHAT HOW
figure() { (IFS=$'\t'; printf '%s\n' "$*") | tee -a "$out/scale.tsv"; }
calc() { awk "BEGIN { printf \"%.3f\", ($1) }"; }
short() { awk "BEGIN { printf \"%.1f\", ($1) }"; }
median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
rss_kb() { awk '/^VmRSS:/ { print $2 }' "/proc/$(cat "$run/$1.pid")/status"; }
cpu_ns() { cat /proc/"$(cat "$run/$1.pid")"/task/*/schedstat | awk '{ sum += $1 } END { print sum }'; }
# of SAMPLE KEY [FIELD]: a number of a sample, or the field of one of its distributions or processes.
of() {
  if [ $# = 2 ]; then sed -nE "s/.*\"$2\":([0-9.]+).*/\1/p" <<<"$1"; else sed -nE "s/.*\"$2\":\{[^}]*\"$3\":([0-9.]+).*/\1/p" <<<"$1"; fi
}

# load PEER TEST REP WORDS...: one run of the load client; prints its sample, fails if a request in a hundred did.
load() {
  local peer=$1 test=$2 rep=$3 sample
  shift 3
  sample=$(timeout 300 taskset -c "$load_core" ${NICE:+nice -n "$NICE"} "$bin/lg" --port "$(port_of "$peer")" --model $model --test "$test" \
    --peer "$peer" --rep "$rep" "$@" 2>"$out/lg.err") || { echo "load client: $(tail -1 "$out/lg.err")" >&2; return 1; }
  echo "$sample"
  [ $(($(of "$sample" errors) * 100)) -le "$(of "$sample" requests)" ] || { echo "$test through $peer: $sample" | cut -c1-400 >&2; return 1; }
}

# until_true SECONDS COMMAND...
until_true() {
  local left=$(($1 * 2))
  shift
  until "$@"; do
    left=$((left - 1))
    [ $left -gt 0 ] || return 1
    sleep 0.5
  done
}

# Requests that a router has at its engines.
in_flight() { curl -s -m 5 "http://127.0.0.1:$(admin_port_of "$1")/metrics" | awk '/^forebay_worker_requests\{/ { sum += $NF } END { print sum + 0 }'; }
has_in_flight() { [ "$(in_flight "$1")" -ge "$2" ]; }
ready_workers() { curl -s -m 30 "http://127.0.0.1:$(admin_port_of "$1")/status" | sed -nE 's/.*"states":\{[^}]*"ready":([0-9]+).*/\1/p'; }
has_ready() { [ "$(ready_workers "$1" || true)" = "$2" ]; }

# Small chats at a steady pace, far below what the router takes. The large prompts' client is nice: it shares a core with the
# small chats' one, and what it costs there must not count. How much it does all the same is what the control says, small
# chats straight to an engine while large prompts go through the router.
head_of_line() {
  local seconds reps rep quiet=() loaded=() control=() background small large='--prompt-bytes 409600 --max-tokens 4 --connections 16 --rate 100'
  seconds=$(pick 10 2) reps=$(pick 5 1)
  small="--prompt-bytes 200 --max-tokens 16 --connections 32 --warmup 200 --rate 200 --seconds $seconds"
  start_engines && start_event_engines && start_peer forebay_kv || return 1
  local p99 sample
  for rep in $(seq "$reps"); do
    # shellcheck disable=SC2086  # one word per flag
    sample=$(load forebay_kv hol_quiet "$rep" $small) || return 1
    quiet+=("$(of "$sample" latency_us p99)")
    for through in forebay_kv direct; do
      # shellcheck disable=SC2086
      NICE=10 load forebay_kv "hol_large_$through" "$rep" $large --warmup 4 --seconds $((seconds + 3)) >"$out/hol_large.json" &
      background=$!
      sleep 1.5
      # shellcheck disable=SC2086
      sample=$(load $through "hol_$through" "$rep" $small) || return 1
      p99=$(of "$sample" latency_us p99)
      [ $through = direct ] && control+=("$p99") || loaded+=("$p99")
      wait $background || return 1
    done
  done
  local q l c rate
  q=$(printf '%s\n' "${quiet[@]}" | median) l=$(printf '%s\n' "${loaded[@]}" | median) c=$(printf '%s\n' "${control[@]}" | median)
  sample=$(cat "$out/hol_large.json")
  rate=$(short "$(of "$sample" requests) / $(of "$sample" seconds)")
  figure hol_p99_x "$(calc "$l / $q")" most 2 'small-chat p99 while 400 KB prompts are tokenised, × quiet' \
    "quiet ${q%.*} µs, loaded ${l%.*} µs, straight to an engine under the same load ${c%.*} µs; 200 small chats and $rate large prompts a second, medians of $reps"
}

open_streams() {
  local streams before after client
  streams=$(pick 8000 800)
  start_engines && start_event_engines && start_peer forebay_kv || return 1
  load forebay_kv streams_warmup 1 --prompt-bytes 200 --max-tokens 16 --stream --connections 64 --warmup 0 --requests 2000 >/dev/null || return 1
  sleep 2
  before=$(rss_kb forebay_kv)
  # One chunk every two seconds, and long enough that all are open at once.
  pace_engines 20000 2000000
  load forebay_kv streams 1 --prompt-bytes 200 --max-tokens "$(pick 20 5)" --stream --connections "$streams" --warmup 0 --requests "$streams" >"$out/streams.json" &
  client=$!
  until_true 60 has_in_flight forebay_kv "$streams" || { echo "only $(in_flight forebay_kv) of $streams streams opened" >&2; return 1; }
  sleep 3
  after=$(rss_kb forebay_kv)
  has_in_flight forebay_kv "$streams" || { echo "some of $streams streams had ended when memory was read" >&2; return 1; }
  wait $client || return 1
  figure stream_kib "$(calc "($after - $before) / $streams")" most 10 'memory of an open stream, KiB' \
    "$streams streams, a chunk each 2 s: RSS $before kB after 2,000 streams have ended, $after kB with all open; all ended whole"
}

# start_crowd NAME POLICY WORKERS HEALTH: a router in front of so many addresses at four listeners.
start_crowd() {
  local name=$1 policy=$2 workers=$3 health=$4 worker
  {
    printf '[listen]\naddress = "127.0.0.1:%s"\n[admin]\naddress = "127.0.0.1:%s"\n' "$(port_of "$name")" "$(admin_port_of "$name")"
    printf '[routing]\npolicy = "%s"\n%s\n' "$policy" "$health"
    printf '[[models]]\nname = "%s"\ntokenizer = "%s"\n' $model "$model_dir"
    for worker in $(seq 0 $((workers - 1))); do
      printf '[[workers]]\nurl = "http://127.1.%s.%s:%s"\n' $((worker / 4 / 250)) $((worker / 4 % 250 + 1)) "${engine_ports[$((worker % 4))]}"
    done
  } >"$run/$name.toml"
  launch "$name" "$router_core" env FOREBAY_LOG=warn "$bin/forebay" serve --config "$run/$name.toml"
  until_true 180 has_ready "$name" "$workers" || { echo "$name: $(ready_workers "$name") of $workers workers became ready: $(tail -1 "$run/$name.log")" >&2; return 1; }
}

# Health checks and scrapes are slowed for the requests' sake and then measured by themselves, at their defaults.
many_workers() {
  local many reps rep policy peer workers sample cpu=() quiet spent
  many=$(pick 10000 1000) reps=$(pick 3 1)
  launch engine "$load_core" "$bin/forebay-engine" --thin --host 0.0.0.0 --ports "$(IFS=,; echo "${engine_ports[*]}")" --model $model
  await engine "${engine_ports[0]}" || return 1
  quiet=$'[health]\ninterval = "1h"\nmetrics_interval = "1h"'
  for policy in kv round-robin; do
    peer=forebay_kv
    [ $policy = kv ] || peer=forebay_rr
    cpu=()
    for workers in 4 "$many"; do
      start_crowd $peer $policy "$workers" "$quiet" || return 1
      # Every worker is met before anything is measured: a first request also opens a connection.
      spent=()
      load $peer crowd_warmup 1 --prompt-bytes 200 --max-tokens 16 --connections 64 --warmup 0 --requests $((workers * 5 + 2000)) >/dev/null || return 1
      for rep in $(seq "$reps"); do
        sample=$(load $peer crowd "$rep" --prompt-bytes 200 --max-tokens 16 --connections 64 --warmup 500 --seconds "$(pick 5 1)" \
          --process "router=$(pids $peer)") || return 1
        spent+=("$(of "$sample" router cpu_us_per_request)")
      done
      cpu+=("$(printf '%s\n' "${spent[@]}" | median)")
      stop $peer
    done
    figure "workers_${policy/round-robin/rr}_x" "$(calc "${cpu[1]} / ${cpu[0]}")" most 1.2 "CPU of a small chat at $many workers, $policy, × 4 workers" \
      "$(short "${cpu[0]}") µs at 4, $(short "${cpu[1]}") µs at $many, medians of $reps; every worker met before, health checks and scrapes hourly"
  done
  local before after cores
  start_crowd forebay_kv kv "$many" '' || return 1
  sleep 5
  before=$(cpu_ns forebay_kv)
  sleep 10
  after=$(cpu_ns forebay_kv)
  cores=$(calc "($after - $before) / 1e10")
  figure workers_scrape_cores "$cores" - - "cores taken by health checks and scrapes of $many idle workers" \
    "defaults: a check each 5 s, metrics each second, so $(calc "$cores * 1e6 / ($many * 1.2)") µs each; RSS $(rss_kb forebay_kv) kB"
}

distinct_prompts() {
  local prompts bytes start end how='' worst=0 grown
  prompts=$(pick 100000 3000)
  for bytes in 200 2000; do
    start_engines && start_event_engines && start_peer forebay_kv || return 1
    sleep 2
    start=$(rss_kb forebay_kv)
    load forebay_kv "distinct_$bytes" 1 --prompt-bytes $bytes --max-tokens 16 --connections 32 --warmup 0 --requests "$prompts" >/dev/null || return 1
    sleep 2
    end=$(rss_kb forebay_kv)
    curl -s -m 5 "http://127.0.0.1:$(admin_port_of forebay_kv)/metrics" >"$out/distinct_$bytes.prom"
    grown=$(calc "($end - $start) / 1024")
    worst=$(calc "($grown > $worst) ? $grown : $worst")
    how+="$bytes B: from $start to $end kB, of which index $(sed -n 's/^forebay_index_bytes //p' "$out/distinct_$bytes.prom") B and memo $(
      sed -nE 's/^forebay_tokenize_memo_bytes[^ ]* //p' "$out/distinct_$bytes.prom" | head -1) B; "
    stop_all
  done
  figure distinct_rss_mib "$worst" most 100 "memory after $prompts distinct prompts, MiB above start" "$how engines hold 262,144 blocks"
}

trap stop_all EXIT
trap 'exit 130' INT TERM
for name in "$@"; do
  require_free_ports forebay_kv forebay_rr || exit 1
  echo "$(date +%T) $name"
  "$name" 2>"$out/$name.err" || cat "$out/$name.err" >&2
  case $name in
    head_of_line) keys=hol_p99_x ;;
    open_streams) keys=stream_kib ;;
    many_workers) keys="workers_kv_x workers_rr_x workers_scrape_cores" ;;
    distinct_prompts) keys=distinct_rss_mib ;;
  esac
  for key in $keys; do
    grep -q "^$key	" "$out/scale.tsv" 2>/dev/null || figure "$key" na - - "$name" "$(tail -1 "$out/$name.err")"
  done
  stop_all
done
