# shellcheck shell=bash
# The workloads, fixed before anything was tuned to them. Sourced by suite.sh and profile.sh.
#
# Prompts depend on the test's name and the repetition alone: every router gets the same. `cold` prompts share nothing
# but the chat template with any other; `seen` ones begin with the text of their group, which the warm-up showed once.
#
# A test called `…_tls`, `…_h2` or `…_h2c` is the one before the underscore, with its clients on TLS, on HTTP/2 over TLS or on
# HTTP/2 in the clear: 16 requests in flight on each HTTP/2 connection. Engines are always reached in the clear.

# The way of a test's clients: http1, tls, h2 or h2c.
transport() { case $1 in *_tls) echo tls ;; *_h2) echo h2 ;; *_h2c) echo h2c ;; *) echo http1 ;; esac; }

workload() {
  local small='--prompt-bytes 200 --max-tokens 16' streams='--prompt-bytes 200 --max-tokens 200 --stream'
  local p32k='--prompt-bytes 32768 --max-tokens 4 --connections 8' p400k='--prompt-bytes 409600 --max-tokens 4 --connections 4'
  local test=$1 way
  way=$(transport "$test")
  if [ "$way" != http1 ]; then
    workload "${test%_"$way"}" | sed "s|\$| --protocol $way --ca $run/bench.pem|"
    return
  fi
  case $test in
    small) echo "$small --connections 64 --warmup 1000 --seconds 2.5" ;;
    c1) echo "$small --connections 1 --warmup 200 --seconds 2" ;;
    c1s) echo "$small --connections 1 --stream --warmup 20 --seconds 2" ;;
    c1sq) echo "$small --connections 1 --stream --quickack --warmup 20 --seconds 2" ;;
    burst) echo "$streams --connections 32 --warmup 32 --seconds 2.5" ;;
    stream) echo "$streams --connections 64 --warmup 64 --requests 64" ;;
    p32k_cold) echo "$p32k --warmup 24 --seconds 2.5" ;;
    p32k_seen) echo "$p32k --mode session --groups 50 --shared-bytes 24000 --warmup 100 --seconds 2.5" ;;
    p400k_cold) echo "$p400k --warmup 4 --seconds 2.5" ;;
    p400k_seen) echo "$p400k --mode session --groups 20 --shared-bytes 300000 --warmup 20 --seconds 2.5" ;;
    *) echo "no such test: $test" >&2; return 2 ;;
  esac
}
