# The front door. `make demo` and `make test` are all that a fresh machine needs: both run deploy/setup.sh first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# What setup fetched serves where the machine has no tool of its own.
export PATH := $(PATH):$(CURDIR)/.cache/venv/bin
CARGO := cargo
LOCKED := --locked

.PHONY: help setup build demo test check fmt clippy arrows docs deny doctest reference limits ci asan bench-faults bench-index bench-kernel bench-proxy bench-routing bench-life ebpf ebpf-verify fuzz loom model-index test-aiperf test-vllm

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-14s %s\n", $$1, $$2}'

setup: ## Install what this machine lacks (safe to run again)
	@deploy/setup.sh

build: ## Build the gateway and the mock engine, debug profile
	$(CARGO) build $(LOCKED) --workspace --bins

demo: setup ## Four mock engines, one gateway: round robin against kv, one table (KEEP=1, DEMO_QUICK=1)
	$(CARGO) build $(LOCKED) --release --workspace --bins
	target/release/forebay-demo

test: setup build ## Fast suites: unit, property, end to end against mock engines
	@target/debug/forebay-bench-kernel --why
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	  $(CARGO) nextest run $(LOCKED) --workspace; \
	else \
	  echo "cargo-nextest is not installed: running cargo test"; $(CARGO) test $(LOCKED) --workspace --lib --bins --tests; \
	fi

check: fmt clippy arrows docs ## Format, lints, arrows between packages, documentation

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings

arrows:
	$(CARGO) test $(LOCKED) -p forebay-tests --test arrows

# A module page may point at the private parts it explains.
docs:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc $(LOCKED) --workspace --no-deps

doctest:
	$(CARGO) test $(LOCKED) --workspace --doc

deny: ## Banned, unlicensed or foreign dependencies
	$(CARGO) deny $(LOCKED) check --allow license-not-encountered bans licenses sources

reference: ## Write the configuration reference into README.md
	$(CARGO) build $(LOCKED) -p forebay --bin forebay
	deploy/reference.sh target/debug/forebay

limits: ## Write LIMITS.md and FAULTS.md
	FOREBAY_WRITE=1 $(CARGO) test $(LOCKED) -p forebay-tests --test limits --test phases

# In CI nothing optional may be skipped: a test that lacks its tokenizer or Python fails.
ci: export FOREBAY_REQUIRE = all
ci: setup ## Everything that CI runs; its last lines are the test summary
	$(MAKE) fmt clippy docs deny
	$(MAKE) doctest
	$(MAKE) build
	ebpf/build.sh verify-if-possible
	DEMO_QUICK=1 target/debug/forebay-demo
	$(MAKE) test

fuzz: ## Every fuzz target for EACH=120 seconds; needs the nightly toolchain
	fuzz/run.sh

model-index: ## The prefix index beside a plain model, 1.6 million random operations, and what takes too long unoptimised
	$(CARGO) test $(LOCKED) --release -p forebay-routing --lib --tests -- --include-ignored --nocapture model such_a_block

loom: ## Every order of readers and a writer of the prefix index, as far as a model checker goes
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO) test $(LOCKED) --release -p forebay-routing --lib -- publish

asan: ## The routing suite under the address sanitizer; needs the nightly toolchain
	RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/asan $(CARGO) +nightly test $(LOCKED) -p forebay-routing \
	  --lib --tests --target x86_64-unknown-linux-gnu

bench-index: ## The prefix index beside dynamo-kv-router's (tests/bench/index)
	cd tests/bench/index && $(CARGO) run $(LOCKED) --release -- all

bench-kernel: ## ns for one run of each kernel program (as root)
	$(CARGO) build $(LOCKED) --release -p forebay-kernel-tests
	target/release/forebay-bench-kernel

ebpf: ## Build the kernel programs into ebpf/prebuilt (installs their toolchain where it lacks)
	ebpf/build.sh

ebpf-verify: ## Build them and compare with ebpf/prebuilt
	ebpf/build.sh verify

bench-faults: setup ## Engines and gateways that die, hang and are replaced; a soak of ten minutes (QUICK=1: all of it, briefly)
	$(CARGO) build $(LOCKED) --release --workspace --bins
	tests/bench/faults.sh

bench-routing: ## Every routing policy on the same requests in virtual time (tests/sim); QUICK=1 for a few cells
	$(CARGO) run $(LOCKED) --release -p forebay-sim -- bench $(if $(QUICK),--quick) --html target/bench-routing.html --json target/bench-routing.json

bench-life: ## The simulator beside a real gateway with mock engines: ten minutes of engine time in five
	$(CARGO) build $(LOCKED) --release --workspace --bins
	target/release/forebay-life

bench-proxy: setup ## Forebay beside nginx, haproxy and the other routers (tests/bench)
	tests/bench/run.sh

test-aiperf: build ## NVIDIA's load generator against gateway and mock engine (installs some 1.2 GB once)
	deploy/setup.sh --aiperf
	$(CARGO) test $(LOCKED) -p forebay-tests --test e2e_sdk -- --ignored --nocapture aiperf

test-vllm: setup ## Two real CPU vLLM engines behind the gateway (downloads about 0.9 GB once)
	$(CARGO) build $(LOCKED) --release --workspace --bins
	tests/vllm/run.sh
