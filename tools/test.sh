#!/usr/bin/env bash
# Sets up, builds and runs every test. Arguments go to ctest, e.g. `tools/test.sh -L oracle` or
# `tools/test.sh -R ring`.
# Exits with ctest's status; ctest's summary comes last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --oracle
if ! command -v nvcc >/dev/null; then
  echo "test: nvcc is not on PATH: the CUDA objects are not compiled"
elif ninja -C build -t query ringside_cuda_objects >/dev/null 2>&1; then
  echo "test: compiling the CUDA objects with $(command -v nvcc)"
  ninja -C build ringside_cuda_objects
else
  echo "test: nvcc is on PATH, this configuration has no CUDA objects"
fi
exec ctest --test-dir build --output-on-failure "$@"
