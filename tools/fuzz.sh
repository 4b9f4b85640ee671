#!/usr/bin/env bash
# Builds the fuzzers of the bridge's formats, prime-rl's among them, of images and of the trainer's state with clang, ASan and
# UBSan in build-fuzz and runs each.
#
# Usage: tools/fuzz.sh [SECONDS]      per fuzzer, 60 by default
#
# New inputs stay in build-fuzz/corpus; an input that breaks a rule is written to
# tests/fuzz/corpus/FORMAT/crash-*, where the ordinary test test_fuzz_replay finds it as well.
# Needs clang: tools/setup.sh --fuzz. Exit status 1 when a fuzzer found something.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kSeconds=${1:-60}
[[ $kSeconds =~ ^[1-9][0-9]*$ ]] || {
  echo "fuzz: '$kSeconds' seconds; expected a whole number above 0" >&2
  exit 2
}
command -v clang++ >/dev/null || {
  echo "fuzz: no clang++; run tools/setup.sh --fuzz" >&2
  exit 2
}
readonly kFlags="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1"

mkdir -p build-fuzz
CC=clang CXX=clang++ cmake -G Ninja -B build-fuzz -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="$kFlags" \
  -DRINGSIDE_FUZZ=ON >build-fuzz/configure.log 2>&1 || {
  cat build-fuzz/configure.log >&2
  exit 2
}
readonly kFormats=(wire codec manifest delta journal keys answer prime_step trainer image processor image_message)
ninja -C build-fuzz -j1 "${kFormats[@]/%/_fuzzer}"

# The entries that read files make them in memory where they can.
[[ -d /dev/shm ]] && export TMPDIR=/dev/shm
found=0
for format in "${kFormats[@]}"; do
  mkdir -p "build-fuzz/corpus/$format"
  echo "fuzz: $format for $kSeconds s"
  "build-fuzz/tests/fuzz/${format}_fuzzer" -max_total_time="$kSeconds" -max_len=4096 -timeout=10 \
    -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="tests/fuzz/corpus/$format/" \
    "build-fuzz/corpus/$format" "tests/fuzz/corpus/$format" >"build-fuzz/$format.log" 2>&1 || {
    found=1
    echo "fuzz: $format broke a rule; the input is in tests/fuzz/corpus/$format, the trace:"
  }
  tail -n 25 "build-fuzz/$format.log" | grep -E "ERROR|SUMMARY|stat::|Test unit|artifact" || true
done
exit "$found"
