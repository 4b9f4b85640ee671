#!/usr/bin/env bash
# Builds sp/ and engine/ with CUDA, runs the tests labelled "gpu" and the GPU benchmarks on this
# machine's GPU, and keeps what they print, with date and versions, in
# tools/bench/results/gpu-DATE.txt.
#
# Usage: tools/gpu_check.sh [TORCH_DIR]
#   TORCH_DIR  torch folder of a torch 2.11.0 with CUDA; default: .env/cuda's, else python3's
# Exits non-zero when there is no GPU, the build or a test fails, or no test carries the label.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  echo "gpu_check: error: $*" >&2
  exit 1
}

find_torch() {
  local candidate
  for candidate in .env/cuda/lib/python3*/site-packages/torch; do
    [[ -d $candidate ]] && echo "$PWD/$candidate" && return
  done
  local find='import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])'
  python3 -c "$find" 2>/dev/null
}

describe_machine() {
  echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "commit: $(git describe --always --dirty 2>/dev/null || echo unknown)"
  local fields=name,driver_version,memory.total
  echo "gpu: $(nvidia-smi --query-gpu=$fields --format=csv,noheader | paste -sd ';')"
  echo "nvcc: $(nvcc --version | tail -n 1)"
  echo "torch: $(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$1/version.py")"
  echo
}

main() {
  nvidia-smi >/dev/null 2>&1 || die "no GPU: nvidia-smi does not answer"
  command -v nvcc >/dev/null || die "nvcc is not on PATH; the CUDA 13.0 toolkit is needed"
  local torch
  torch=${1:-$(find_torch)} || die "no torch found; give its folder, or run tools/setup.sh --cuda"
  [[ -e $torch/lib/libtorch_cuda.so ]] || die "no lib/libtorch_cuda.so in '$torch'"

  cmake --preset cuda "-DRINGSIDE_TORCH_DIR=$torch"
  ninja -C build-cuda sp/all engine/all tests/sp/all tests/engine/all tools/bench/all

  mkdir -p tools/bench/results
  local results bench status=0
  results=tools/bench/results/gpu-$(date -u +%Y-%m-%d).txt
  describe_machine "$torch" | tee "$results"
  ctest --test-dir build-cuda -L gpu --no-tests=error --output-on-failure 2>&1 |
    tee -a "$results" || status=$?
  for bench in build-cuda/tools/bench/gpu_*_bench; do
    [[ -x $bench ]] || continue
    "$bench" 2>&1 | tee -a "$results" || status=$?
  done
  echo "gpu_check: results are in $results"
  return "$status"
}

main "$@"
