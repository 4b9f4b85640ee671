#!/usr/bin/env bash
# Builds and runs the context-parallel benchmark and draws it.
# Usage: tools/bench/cp/run.sh [--save] [TOKENS [REPETITIONS]]
#   --save  keep the figures and the plot under tools/bench/results/
set -euo pipefail
cd "$(dirname "$0")/../../.."

save=0
if [[ ${1:-} == --save ]]; then
  save=1
  shift
fi
ninja -C build bench_cp >&2
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
build/tools/bench/bench_cp "$@" | tee "$out/cp.jsonl"
.env/oracle/bin/python tools/bench/cp/plot.py "$out/cp.jsonl" "$out/cp.png"
if ((save)); then
  stem="tools/bench/results/cp-$(date +%F)"
  mkdir -p tools/bench/results
  {
    printf '{"what": "machine", "cpu": "%s", "cores": %d, "commit": "%s"}\n' \
      "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(git rev-parse --short HEAD)"
    cat "$out/cp.jsonl"
  } > "$stem.jsonl"
  cp "$out/cp.png" "$stem.png"
  echo "saved $stem.jsonl and .png" >&2
fi
