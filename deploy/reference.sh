#!/usr/bin/env bash
# Writes the configuration reference that FOREBAY prints into README.md, between its markers.
#
# usage: deploy/reference.sh FOREBAY
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
reference=$(mktemp)
trap 'rm -f "$reference" "$reference.md"' EXIT
"$1" check --reference >"$reference"
awk -v reference="$reference" '
  /^<!-- config -->$/ { print; while ((getline line < reference) > 0) print line; inside = 1 }
  /^<!-- \/config -->$/ { inside = 0 }
  !inside
' README.md >"$reference.md"
cat "$reference.md" >README.md
