# shellcheck shell=bash
# Starts and stops the engines and every router. Sourced by suite.sh and profile.sh.
#
# All traffic stays on 127.0.0.1. A process is known by the pid in $run/NAME.pid and stopped by that pid alone.
# A router that cannot start leaves a line in $out/na.tsv (PEER, TEST or *, reason) and is left out of the matrix.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
peers=${PEERS_DIR:-$here/.peers}
run=$peers/run
tokenizer=${TOKENIZER:-qwen3}
model_dir=$peers/model
# Dynamo reads more than a tokenizer of its model's folder, so another one is for forebay alone.
[ "$tokenizer" = qwen3 ] || model_dir=$root/.cache/tokenizers/$tokenizer
model=bench-model
router_core=${ROUTER_CORE:-0}
load_core=${LOAD_CORE:-1}
bin=${BIN_DIR:-$root/target/dist}
out=${out:-$run}
mkdir -p "$run" "$out"

# Engines without a model behind them; those of forebay-kv also publish KV events.
engine_ports=(19001 19002 19003 19004)
event_engine_ports=(19011 19012 19013 19014)
urls() { printf 'http://127.0.0.1:%s ' "$@"; }

port_of() {
  case $1 in
    direct) echo "${engine_ports[0]}" ;;
    nginx) echo 18103 ;;
    haproxy) echo 18104 ;;
    dynamo_kv) echo 18105 ;;
    dynamo_rr) echo 18106 ;;
    dynamo_kv_fast) echo 18107 ;;
    sglang_rr) echo 18111 ;;
    sglang_ca) echo 18112 ;;
    vllm_rr) echo 18121 ;;
    vllm_ca) echo 18122 ;;
    forebay_rr) echo 18131 ;;
    forebay_kv) echo 18132 ;;
  esac
}
admin_port_of() { echo $(($(port_of "$1") + 1000)); }

# A router's process for a way (http1, tls, h2, h2c), and the port of that way. Forebay's listener either speaks TLS or not, so
# TLS is another process of it; in the clear both HTTP versions share a port. nginx and haproxy listen once for each.
process_of() { case $1.$2 in forebay_*.tls | forebay_*.h2) echo "$1_tls" ;; *) echo "$1" ;; esac; }
way_port_of() {
  local port
  port=$(port_of "$1")
  case $1.$2 in
    *.http1 | forebay_*.h2c) echo "$port" ;;
    *.tls | *.h2) echo $((port + 100)) ;;
    *.h2c) echo $((port + 200)) ;;
  esac
}
speaks() { case $1.$2 in *.http1 | nginx.* | haproxy.* | forebay_*) true ;; *) false ;; esac; }

# One certificate for every router that speaks TLS; its client trusts it alone.
make_certificate() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=bench -addext subjectAltName=IP:127.0.0.1 \
    -addext basicConstraints=critical,CA:FALSE -keyout "$run/bench.key" -out "$run/bench.pem" 2>"$run/openssl.log" &&
    cat "$run/bench.pem" "$run/bench.key" >"$run/bench.both"
}

# launch NAME CORE COMMAND...
launch() {
  local name=$1 core=$2
  shift 2
  taskset -c "$core" "$@" >"$run/$name.log" 2>&1 &
  echo $! >"$run/$name.pid"
}

alive() { [ -f "$run/$1.pid" ] && kill -0 "$(cat "$run/$1.pid")" 2>/dev/null; }

# stop NAME: asks, waits two seconds (some routers take minutes to be graceful), then insists.
stop() {
  local pid
  pid=$(cat "$run/$1.pid" 2>/dev/null) || return 0
  rm -f "$run/$1.pid"
  kill -TERM "$pid" 2>/dev/null || return 0
  for _ in $(seq 20); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  local child
  for child in $(cat /proc/"$pid"/task/*/children 2>/dev/null); do kill -KILL "$child" 2>/dev/null; done
  kill -KILL "$pid" 2>/dev/null
}

stop_all() {
  local file
  for file in "$run"/*.pid; do [ -e "$file" ] && stop "$(basename "$file" .pid)"; done
}

# pids NAME: its pid and its children's, joined by +.
pids() {
  local pid
  pid=$(cat "$run/$1.pid")
  echo "$pid $(cat /proc/"$pid"/task/*/children 2>/dev/null | tr '\n' ' ')" | xargs | tr ' ' '+'
}

# chat PORT [WAY]
chat() {
  local to=("http://127.0.0.1:$1/v1/chat/completions")
  [ "${2:-http1}" != tls ] || to=(--cacert "$run/bench.pem" "https://127.0.0.1:$1/v1/chat/completions")
  curl -s -m 5 -H 'content-type: application/json' "${to[@]}" \
    -d '{"model":"'$model'","messages":[{"role":"user","content":"hello"}],"max_tokens":2}'
}

# await NAME PORT [WAY]: until a chat is answered through it; says what is wrong otherwise.
await() {
  local answer="" tries
  for tries in $(seq 300); do
    alive "$1" || { echo "exited at start: $(grep -v '^ *$' "$run/$1.log" | tail -1)"; return 1; }
    answer=$(chat "$2" "${3:-http1}") || true
    grep -q '"choices"' <<<"$answer" && return 0
    sleep 0.2
  done
  echo "no chat answered in $tries tries: ${answer:-no answer}; log: $(tail -1 "$run/$1.log")"
  return 1
}

# na PEER TEST REASON
na() { printf '%s\t%s\t%s\n' "$1" "$2" "$(tr '\t\n' '  ' <<<"$3" | cut -c1-240)" | tee -a "$out/na.tsv"; }

# A port that somebody else holds would answer in our router's name.
require_free_ports() {
  local port peer ports=("${engine_ports[@]}" "${event_engine_ports[@]}")
  for peer in "$@"; do
    [ "$peer" = direct ] || ports+=("$(port_of "$peer")" "$(admin_port_of "$peer")")
    case $peer in nginx | haproxy | forebay_*) ports+=($(($(port_of "$peer") + 100)) $(($(port_of "$peer") + 200))) ;; esac
  done
  for port in "${ports[@]}"; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "port $port is taken: stop what listens there (ss -ltnp)" >&2
      return 1
    fi
  done
}

start_engines() {
  launch engine "$load_core" "$bin/forebay-engine" --thin --ports "$(IFS=,; echo "${engine_ports[*]}")" --model $model
  await engine "${engine_ports[0]}"
}

# Engines that tokenise each prompt and publish what their block cache stores and evicts. It holds as many tokens as
# Dynamo's mocker is given.
start_event_engines() {
  launch event_engine "$load_core" "$bin/forebay-engine" --thin --ports "$(IFS=,; echo "${event_engine_ports[*]}")" --model $model \
    --tokenizer "$model_dir" --kv-events --block-size 16 --num-gpu-blocks 65536
  await event_engine "${event_engine_ports[0]}"
}

# Pace of streamed chunks, for both sets of engines.
pace_engines() {
  local port
  for port in "${engine_ports[0]}" "${event_engine_ports[0]}"; do
    curl -s -m 2 -X POST "http://127.0.0.1:$port/_ctl?ttft_us=$1&itl_us=$2" >/dev/null
  done
  return 0
}

start_nginx() {
  sed "s|RUN|$run|" "$here/nginx.conf" >"$run/nginx.conf"
  launch nginx "$router_core" nginx -p "$run/" -c "$run/nginx.conf" -g 'daemon off;'
}
start_haproxy() { launch haproxy "$router_core" env BENCH_RUN="$run" haproxy -f "$here/haproxy.cfg" -db; }

# start_sglang NAME POLICY, start_vllm NAME POLICY
start_sglang() {
  # shellcheck disable=SC2046  # one word per URL
  launch "$1" "$router_core" "$peers/sglang/bin/python" -m sglang_router.launch_router --host 127.0.0.1 --port "$(port_of "$1")" \
    --worker-urls $(urls "${engine_ports[@]}") --policy "$2" --log-level warn \
    --prometheus-host 127.0.0.1 --prometheus-port "$(admin_port_of "$1")" --worker-startup-check-interval 1
}
start_vllm() {
  # shellcheck disable=SC2046
  launch "$1" "$router_core" "$peers/vllm/bin/python" -m vllm_router.launch_router --host 127.0.0.1 --port "$(port_of "$1")" \
    --worker-urls $(urls "${engine_ports[@]}") --policy "$2" --log-level warning \
    --prometheus-port "$(admin_port_of "$1")" --worker-startup-check-interval 1
}

# Dynamo with neither etcd nor NATS; unset, its planes would use the address of the machine's network card.
dynamo() {
  local name=$1 core=$2
  shift 2
  launch "$name" "$core" env HOME="$run" DYN_DISCOVERY_BACKEND=file DYN_FILE_KV="$run/dynamo-discovery" DYN_LOG=error DO_NOT_TRACK=1 \
    HF_HUB_OFFLINE=1 DYN_TCP_RPC_HOST=127.0.0.1 DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1 DYN_EVENT_PLANE_HOST=127.0.0.1 \
    DYN_HTTP_RPC_HOST=127.0.0.1 DYN_SYSTEM_HOST=127.0.0.1 "$peers/dynamo/bin/python" -m "$@"
}

# start_mocker fast|paced: answers at once, or about 14 ms a token at 16 streams a worker.
start_mocker() {
  local speed=(--speedup-ratio 1000)
  [ "$1" = paced ] && speed=(--speedup-ratio 1 --decode-speedup-ratio 0.43)
  rm -rf "$run/dynamo-discovery"
  dynamo mocker "$load_core" dynamo.mocker --model-path "$model_dir" --model-name $model --num-workers 4 --block-size 64 \
    --num-gpu-blocks-override 16384 "${speed[@]}"
}

# start_dynamo NAME MODE [ARGS]
start_dynamo() {
  local name=$1 mode=$2
  shift 2
  dynamo "$name" "$router_core" dynamo.frontend --http-host 127.0.0.1 --http-port "$(port_of "$name")" --router-mode "$mode" \
    --kv-cache-block-size 64 "$@"
}

# start_forebay NAME POLICY PORT...: NAME_tls speaks TLS, on the port that belongs to it.
start_forebay() {
  local name=$1 policy=$2 port offset=0
  shift 2
  [[ $name == *_tls ]] && offset=100
  port=$(($(port_of "${name%_tls}") + offset))
  {
    printf '[listen]\naddress = "127.0.0.1:%s"\n' "$port"
    printf '[admin]\naddress = "127.0.0.1:%s"\n' "$((port + 1000))"
    printf '[routing]\npolicy = "%s"\n' "$policy"
    [ $offset = 0 ] || printf '[[certificates]]\nchain_file = "%s"\nkey_file = "%s"\n' "$run/bench.pem" "$run/bench.key"
    printf '[[models]]\nname = "%s"\ntokenizer = "%s"\n' $model "$model_dir"
    for port in "$@"; do printf '[[workers]]\nurl = "http://127.0.0.1:%s"\n' "$port"; done
  } >"$run/$name.toml"
  launch "$name" "$router_core" env FOREBAY_LOG=warn "$bin/forebay" serve --config "$run/$name.toml"
}

# start_peer PEER: starts it and waits until it serves; else notes why not and fails.
start_peer() {
  local peer=$1 package reason
  package=${peer%%_*}
  if [ -f "$peers/$package.why" ]; then
    na "$peer" '*' "$(cat "$peers/$package.why")"
    return 1
  fi
  case $peer in
    direct) return 0 ;;
    nginx | haproxy) "start_$peer" ;;
    sglang_rr | vllm_rr) "start_$package" "$peer" round_robin ;;
    sglang_ca | vllm_ca) "start_$package" "$peer" cache_aware ;;
    dynamo_rr) start_dynamo "$peer" round-robin ;;
    dynamo_kv) start_dynamo "$peer" kv ;;
    dynamo_kv_fast) start_dynamo "$peer" kv --tokenizer fastokens ;;
    forebay_rr*) start_forebay "$peer" round-robin "${engine_ports[@]}" ;;
    forebay_kv*) start_forebay "$peer" kv "${event_engine_ports[@]}" ;;
    *) echo "no such peer: $peer" >&2; return 2 ;;
  esac
  local way=http1
  [[ $peer == *_tls ]] && way=tls
  reason=$(await "$peer" "$(way_port_of "${peer%_tls}" $way)" $way) || { na "$peer" '*' "$reason"; stop "$peer"; return 1; }
}

# nonlocal NAME: its established connections that leave the loopback interface.
nonlocal() { ss -tnpH state established | grep "pid=$(cat "$run/$1.pid")," | grep -v ' 127\.0\.0\.1:[0-9]* *127\.0\.0\.1:'; }
