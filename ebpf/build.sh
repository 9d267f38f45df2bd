#!/usr/bin/env bash
# Builds the kernel programs.
#
#   ebpf/build.sh          build and replace ebpf/prebuilt/forebay.o
#   ebpf/build.sh verify   build and compare with ebpf/prebuilt/forebay.o
#   ebpf/build.sh verify-if-possible   the same where the toolchain is there already; else only say that it is not
#
# Needs a compiler with its library sources (Debian's rustc-web and rust-web-src, or rustup's nightly with rust-src) and
# bpf-linker on an LLVM that is no older than the compiler's: an older one misreads bitcode or writes broken BTF without a
# word. What is missing is installed where this can be done (apt as root), and named otherwise.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
readonly LINKER_VERSION=0.13.0
readonly LLVM_MAJOR=22
readonly CACHE=$PWD/../.cache/bpf-linker
readonly TARGET=$PWD/../target/ebpf
readonly OBJECT=$TARGET/bpfel-unknown-none/release/forebay
readonly PREBUILT=prebuilt/forebay.o

say() { printf 'ebpf: %s\n' "$*"; }
die() { printf 'ebpf: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- compiler --------------------------------------------------------------------------------------------------------

has_sources() { [ -f "$("$1" --print sysroot)/lib/rustlib/src/rust/library/core/Cargo.toml" ]; }

install_packages() {
  have apt-get || die "install $* (or rustup's nightly with rust-src) and run again"
  [ "$(id -u)" -eq 0 ] || die "run as root: apt-get install $*"
  say "installing with apt: $*"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

choose_compiler() {
  if [ -n "${RUSTC:-}" ]; then has_sources "$RUSTC" || die "RUSTC=$RUSTC has no library sources"; return; fi
  if [ -x /usr/bin/rustc ] && has_sources /usr/bin/rustc; then RUSTC=/usr/bin/rustc; return; fi
  if have rustup && RUSTC=$(rustup which --toolchain nightly rustc 2>/dev/null) && has_sources "$RUSTC"; then return; fi
  install_packages rustc-web rust-web-src
  RUSTC=/usr/bin/rustc
}

# --- linker ----------------------------------------------------------------------------------------------------------

# The LLVM that the linker was linked with; asked of the llvm-config beside that library.
linker_llvm() {
  local library
  library=$(ldd "$(command -v bpf-linker)" | sed -n 's/.*=> \(.*libLLVM[^ ]*\).*/\1/p')
  [ -n "$library" ] || { cat "$CACHE/llvm-version" 2>/dev/null; return; }
  "$(dirname "$library")/../bin/llvm-config" --version 2>/dev/null \
    || "$(dirname "$(readlink -f "$library")")/llvm-$LLVM_MAJOR/bin/llvm-config" --version
}

choose_linker() {
  export PATH="$PATH:$CACHE/bin"
  have bpf-linker && return
  local prefix=/usr/lib/llvm-$LLVM_MAJOR
  [ -x "$prefix/bin/llvm-config" ] || install_packages "llvm-$LLVM_MAJOR-dev" "libpolly-$LLVM_MAJOR-dev"
  say "building bpf-linker $LINKER_VERSION on $("$prefix/bin/llvm-config" --version)"
  LLVM_PREFIX=$prefix cargo install bpf-linker --version "$LINKER_VERSION" --locked \
    --no-default-features --features "llvm-$LLVM_MAJOR" --root "$CACHE" --quiet
}

# What the object is made of, as one digest: a test compares it with the sources, so that nobody forgets to rebuild.
sources_digest() {
  (cd .. && cat $(LC_ALL=C ls ebpf/programs/Cargo.toml ebpf/programs/Cargo.lock ebpf/programs/src/*.rs \
    common/src/kernel/account.rs common/src/kernel/address.rs common/src/kernel/guard.rs common/src/kernel/layout.rs \
    common/src/kernel/packet.rs) | sha256sum | cut -d' ' -f1)
}

not_older() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -1)" = "$2" ]; }

if [ "${1:-}" = verify-if-possible ]; then
  export PATH="$PATH:$CACHE/bin"
  if ! have bpf-linker || ! { [ -n "${RUSTC:-}" ] || [ -f /usr/lib/rustlib/src/rust/library/core/Cargo.toml ]; }; then
    say "not rebuilt: no bpf-linker or library sources here (make ebpf-verify installs them); the suites hold its sources' digest"
    exit 0
  fi
  set -- verify
fi
choose_compiler
choose_linker
compiler_llvm=$("$RUSTC" -vV | sed -n 's/^LLVM version: //p')
reader_llvm=$(linker_llvm)
[ -n "$reader_llvm" ] || die "cannot tell which LLVM $(command -v bpf-linker) uses; remove it and run again"
not_older "$reader_llvm" "$compiler_llvm" \
  || die "bpf-linker uses LLVM $reader_llvm, $RUSTC writes LLVM $compiler_llvm: an older reader breaks objects without a word. Build bpf-linker on LLVM $compiler_llvm or newer"
producer="$("$RUSTC" --version), $(bpf-linker --version), LLVM $reader_llvm"

# Paths and flags that differ between machines stay out of the object.
export RUSTC RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$TARGET
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER
(cd programs && cargo build --locked --release --quiet)

# Debug information is only for the linker; the loader needs code, maps, relocations and BTF.
mkdir -p prebuilt
objcopy=/usr/lib/llvm-$LLVM_MAJOR/bin/llvm-objcopy
if [ -x "$objcopy" ]; then "$objcopy" --strip-debug "$OBJECT" "$OBJECT.o"; else cp "$OBJECT" "$OBJECT.o"; fi

case "${1:-}" in
  "")
    cp "$OBJECT.o" "$PREBUILT"
    echo "$producer" >prebuilt/producer
    sources_digest >prebuilt/sources
    say "wrote $PREBUILT ($(stat -c %s "$PREBUILT") bytes) with $producer"
    ;;
  verify)
    FOREBAY_EBPF_REBUILT="$OBJECT.o" FOREBAY_EBPF_PRODUCER="$producer" cargo test --manifest-path ../Cargo.toml --locked --quiet \
      -p forebay-kernel-tests --test object -- rebuilt --nocapture
    ;;
  *) die "usage: ebpf/build.sh [verify]" ;;
esac
