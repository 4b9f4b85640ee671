#!/usr/bin/env bash
# Sets up, builds and runs every test. Arguments go to ctest, e.g. `tools/test.sh -L oracle` or
# `tools/test.sh -R ring`.
# Two tests run at a time, or as many as CTEST_PARALLEL_LEVEL says. Exits with ctest's status; ctest's
# summary comes last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --oracle
# Says whether the CUDA and NCCL objects were compiled in this tree, or why they were skipped.
sed -n 's/^-- \(CUDA and NCCL objects\)/test: \1/p' build/configure.log
export CTEST_PARALLEL_LEVEL="${CTEST_PARALLEL_LEVEL:-2}"
exec ctest --test-dir build --output-on-failure "$@"
