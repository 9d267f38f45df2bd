# shellcheck shell=bash
# The workloads, fixed before anything was tuned to them. Sourced by suite.sh and profile.sh.
#
# Prompts depend on the test's name and the repetition alone: every router gets the same. `cold` prompts share nothing
# but the chat template with any other; `seen` ones begin with the text of their group, which the warm-up showed once.
workload() {
  local small='--prompt-bytes 200 --max-tokens 16' streams='--prompt-bytes 200 --max-tokens 200 --stream'
  local p32k='--prompt-bytes 32768 --max-tokens 4 --connections 8' p400k='--prompt-bytes 409600 --max-tokens 4 --connections 4'
  case $1 in
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
    *) echo "no such test: $1" >&2; return 2 ;;
  esac
}
