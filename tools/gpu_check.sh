#!/usr/bin/env bash
# Runs on this machine's GPU what only a GPU can tell, and writes gpu-DATE.json with date, commit,
# versions and GPU. One after the other: (1) a step's memory peak beside the prediction of `ringside
# check`; (2) the speed of attention; (3) where python3 has transformers, a GRPO step of a Qwen3 of
# 0.6B parameters beside it. Then side by side: (4) the tests labelled "gpu", among them training on
# the device beside the CPU; (5) the same under CUDA_LAUNCH_BLOCKING=1; (6) the bits of attention and
# of deterministic trainings, which must be equal with and without it.
#
# Usage: tools/gpu_check.sh    in a checkout after `tools/setup.sh --cuda`; results in tools/bench/results/
#        ./gpu_check.sh        in an unpacked bundle that was made with --cuda; results in results/
#        gpu_check.sh --dry-run
#                              runs the parts that can run on a CPU there, and measures nothing: a
#                              check of this script; prints what it would write
# Without a GPU it says so, runs nothing and exits 0. Exits non-zero when there is a GPU and a part
# fails, or when no test carries the label.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ -e MANIFEST ]] || cd ..

say() { echo "gpu_check: $*"; }
die() {
  echo "gpu_check: error: $*" >&2
  exit 1
}

# Sets, for a bundle or a checkout: program, results, commit, python, and the functions gpu_tests,
# which runs the tests, gpu_test NAME ARGUMENT..., which runs one program of them, and
# bench_attention.
use_bundle() {
  program=bin/ringside_cuda results=results python=python3 step=tools/grpo_step.py
  commit=$(sed -n 's/^commit: //p' MANIFEST)
  [[ -x libexec/ringside_cuda ]] || die "this bundle was made without --cuda"
  bench_attention() { bin/with-torch libexec/bench_gpu_attention "$@"; }
  gpu_test() { bin/with-torch "tests/$1" "${@:2}"; }
  gpu_tests() {
    local name labels process failed=0 running=()
    while read -r name labels; do
      [[ " $labels " == *" gpu "* ]] || continue
      gpu_test "$name" &
      running+=($!)
    done <tests/labels.txt
    ((${#running[@]})) || die "no test carries the label gpu"
    for process in "${running[@]}"; do
      wait "$process" || failed=1
    done
    return "$failed"
  }
}

use_checkout() {
  program=build/ringside_cuda results=tools/bench/results python=python3 step=tools/bench/gpu/grpo_step.py
  commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
  [[ -x .env/oracle/bin/python ]] && python=.env/oracle/bin/python
  local tests
  tests=$(awk '$2 == "tests" && / gpu( |$)/ {print $1}' build/bundle_cuda_targets.txt)
  # shellcheck disable=SC2086  # several targets
  ninja -C build ringside_cuda bench_gpu_attention $tests
  bench_attention() { build/tools/bench/gpu/bench_gpu_attention "$@"; }
  gpu_test() { "$(find build/tests -type f -name "$1" -executable)" "${@:2}"; }
  gpu_tests() { ctest --test-dir build -L gpu --no-tests=error --output-on-failure -j "$(nproc)"; }
}

# A JSON string of some text.
quoted() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf '"%s"' "${text//$'\n'/\\n}"
}

# record NAME STATUS SECONDS: how a part ended.
record() {
  local outcome=passed
  (($2 == 0)) || { outcome=failed; status=1; }
  parts+="$(quoted "$1"): {\"outcome\": \"$outcome\", \"seconds\": $3}, "
}

# part NAME COMMAND...: runs it and records how it ended.
part() {
  local name=$1 begin=$SECONDS ended=0
  shift
  say "$name"
  "$@" || ended=$?
  record "$name" "$ended" $((SECONDS - begin))
}

# parts_at_once [NAME COMMAND]...: runs them side by side, prints what each printed, and records how each ended. The
# command is one word.
parts_at_once() {
  local names=() processes=() i ended
  while (($# > 0)); do
    say "$1"
    names+=("$1")
    (
      begin=$SECONDS ended=0
      "$2" >"$work/output_${#names[@]}" 2>&1 || ended=$?
      echo $((SECONDS - begin)) >"$work/seconds_${#names[@]}"
      exit "$ended"
    ) &
    processes+=($!)
    shift 2
  done
  for i in "${!names[@]}"; do
    ended=0
    wait "${processes[i]}" || ended=$?
    echo "== ${names[i]}"
    cat "$work/output_$((i + 1))"
    record "${names[i]}" "$ended" "$(<"$work/seconds_$((i + 1))")"
  done
}

blocking_tests() { CUDA_LAUNCH_BLOCKING=1 gpu_tests; }

equal_bits() {
  bench_attention --digests >"$work/digests" || return 1
  CUDA_LAUNCH_BLOCKING=1 bench_attention --digests >"$work/blocking_digests" || return 1
  [[ -s $work/digests ]] || return 1
  diff "$work/digests" "$work/blocking_digests"
}

# Deterministic products of cuBLAS need workspaces of a fixed size.
training_digests() {
  CUBLAS_WORKSPACE_CONFIG=:4096:8 gpu_test test_training_cuda '[digests]' | grep '^digest of '
}

equal_training() {
  training_digests >"$work/trainings" || return 1
  CUDA_LAUNCH_BLOCKING=1 training_digests >"$work/blocking_trainings" || return 1
  diff "$work/trainings" "$work/blocking_trainings"
}

memory_peak() {
  local status=0
  gpu_test test_training_cuda '[memory]' >"$work/memory_output" || status=1
  grep '^{' "$work/memory_output" >"$work/memory" || status=1
  ((status == 0)) || cat "$work/memory_output"
  return "$status"
}

attention_speed() { bench_attention | tee "$work/attention" && [[ -s $work/attention ]]; }

grpo_step() { "$python" "$step" --ringside "$program" | tee "$work/step"; }

# field NAME FILE: a member of the results, when the part wrote the file whole.
field() {
  "$python" -m json.tool "$2" >/dev/null 2>&1 || return 0
  printf ',\n"%s": ' "$1"
  cat "$2"
}

# write_results GPU: the results file, on stdout.
write_results() {
  printf '{\n"date": %s,\n' "$(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)")"
  printf '"commit": %s,\n' "$(quoted "$commit")"
  printf '"gpu": %s,\n' "$(quoted "$1")"
  printf '"versions": %s,\n' "$(quoted "$(cat "$work/version")")"
  printf '"parts": {%s}' "${parts%, }"
  field attention "$work/attention"
  field memory "$work/memory"
  field grpo_step "$work/step"
  printf '\n}\n'
}

# On the CPU: everything but what only a GPU can run. Its results must be JSON.
dry_run() {
  export RINGSIDE_TEST_DEVICE=cpu
  "$program" --version >"$work/version"
  part "gpu tests" gpu_tests
  part "equal bits of trainings with blocking launches" equal_training
  part "memory peak" memory_peak
  write_results "none: a dry run on the CPU" >"$work/results"
  "$python" -m json.tool "$work/results"
}

measure() {
  "$program" --version | tee "$work/version"
  grep -q '^cuda: [1-9]' "$work/version" || die "$program sees no CUDA device, though nvidia-smi answers"
  mkdir -p "$results"
  part "memory peak" memory_peak
  part "attention" attention_speed
  if "$python" -c 'import transformers' 2>/dev/null; then
    part "GRPO step beside transformers" grpo_step
  else
    say "$python has no transformers: no GRPO step beside it"
  fi
  local file gpu
  gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)
  file=$results/gpu-$(date -u +%Y-%m-%d).json
  write_results "$gpu" >"$file"  # so that they are there if what follows does not end
  export OMP_NUM_THREADS=4
  parts_at_once "gpu tests" gpu_tests "gpu tests, blocking launches" blocking_tests \
    "equal bits of attention with blocking launches" equal_bits \
    "equal bits of trainings with blocking launches" equal_training
  write_results "$gpu" >"$file"
  say "results are in $file"
}

main() {
  (($# == 0)) || [[ $# -eq 1 && $1 == --dry-run ]] || die "unknown arguments: $*; expected none or --dry-run"
  if (($# == 0)) && ! nvidia-smi >/dev/null 2>&1; then
    say "no GPU on this machine (nvidia-smi does not answer): nothing was built, run or measured"
    return 0
  fi
  local program results python step commit work status=0 parts=''
  if [[ -e MANIFEST ]]; then use_bundle; else use_checkout; fi
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$work'" EXIT
  if (($# == 0)); then measure; else dry_run; fi
  return "$status"
}

main "$@"
