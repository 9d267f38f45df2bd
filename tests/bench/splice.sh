#!/usr/bin/env bash
# splice.sh SECTION FILE: replaces what stands between `<!-- SECTION -->` and `<!-- /SECTION -->` in RESULTS.md by FILE.
set -eu
results=$(dirname "$0")/RESULTS.md
grep -qx "<!-- $1 -->" "$results" && grep -qx "<!-- /$1 -->" "$results" || { echo "$results lacks the markers of '$1'" >&2; exit 1; }
sed -i -e "/^<!-- ${1//\//\\/} -->\$/,/^<!-- \/${1//\//\\/} -->\$/{//!d}" -e "/^<!-- ${1//\//\\/} -->\$/r $2" "$results"
