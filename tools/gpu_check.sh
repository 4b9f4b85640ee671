#!/usr/bin/env bash
# Builds the CUDA part with the `cuda` preset, runs the tests labelled "gpu" and the attention
# benchmark on this machine's GPU, and writes tools/bench/results/gpu-DATE.json with date, commit and
# versions. Without a GPU it says so, builds nothing and exits 0.
#
# Usage: tools/gpu_check.sh [TORCH_DIR]
#   TORCH_DIR  torch folder of a torch 2.11.0 with CUDA; default: .env/cuda's, else python3's
# Exits non-zero when there is a GPU and the build, a test or the benchmark fails, or no test carries
# the label.
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

# A JSON string of one line of text.
quoted() {
  local text=${1//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}

# write_results FILE TORCH_DIR TESTS BENCHMARK_FILE
write_results() {
  local gpu fields=name,driver_version,memory.total
  gpu=$(nvidia-smi --query-gpu=$fields --format=csv,noheader | paste -sd ';')
  {
    printf '{\n"date": %s,\n' "$(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)")"
    printf '"commit": %s,\n' "$(quoted "$(git describe --always --dirty 2>/dev/null || echo unknown)")"
    printf '"gpu": %s,\n' "$(quoted "$gpu")"
    printf '"nvcc": %s,\n' "$(quoted "$(nvcc --version | tail -n 1)")"
    printf '"torch": %s,\n' "$(quoted "$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$2/version.py")")"
    printf '"tests": %s,\n"attention": ' "$(quoted "$3")"
    cat "$4"
    printf '}\n'
  } >"$1"
}

main() {
  if ! nvidia-smi >/dev/null 2>&1; then
    echo "gpu_check: no GPU on this machine (nvidia-smi does not answer): nothing was built, run or measured"
    return 0
  fi
  command -v nvcc >/dev/null || die "nvcc is not on PATH; the CUDA 13.0 toolkit is needed"
  local torch
  torch=${1:-$(find_torch)} || die "no torch found; give its folder, or run tools/setup.sh --cuda"
  [[ -e $torch/lib/libtorch_cuda.so ]] || die "no lib/libtorch_cuda.so in '$torch'"

  cmake --preset cuda "-DRINGSIDE_TORCH_DIR=$torch"
  ninja -C build-cuda test_sp_cuda test_engine_cuda bench_gpu_attention

  local tests=passed status=0 measured
  ctest --test-dir build-cuda -L gpu --no-tests=error --output-on-failure || { tests=failed; status=1; }
  measured=$(mktemp)
  trap 'rm -f "$measured"' RETURN
  build-cuda/tools/bench/gpu/bench_gpu_attention | tee "$measured" || die "the benchmark failed"

  mkdir -p tools/bench/results
  local results
  results=tools/bench/results/gpu-$(date -u +%Y-%m-%d).json
  write_results "$results" "$torch" "$tests" "$measured"
  echo "gpu_check: tests $tests; results are in $results"
  return "$status"
}

main "$@"
