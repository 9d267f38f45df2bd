#!/usr/bin/env bash
# `make test-vllm`: installs what is needed once, then runs suite.py against target/release/forebay.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tests/vllm/install.sh
exec .cache/vllm/venv/bin/python tests/vllm/suite.py "${FOREBAY:-target/release/forebay}"
