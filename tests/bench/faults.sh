#!/usr/bin/env bash
# The fault benchmark with the release build, as `make bench-faults` made it; a whole run replaces its section of RESULTS.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
page=$(mktemp)
trap 'rm -f "$page"' EXIT
{
  printf '%s, %s cores, %s; `%s`, release profile.\n\n' "$(date -u +'%Y-%m-%d %H:%M UTC')" "$(nproc)" \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(git -C "$root" describe --always --dirty 2>/dev/null)"
} >"$page"
"$root/target/release/forebay-faults" "$@" | tee >(sed -n '/^| what/,$p' >>"$page")
wait
[ -n "${QUICK:-}" ] || [ $# -gt 0 ] || "$here/splice.sh" faults "$page"
