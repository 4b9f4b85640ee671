#!/usr/bin/env bash
# Runs the quickstart's GRPO by torchrun.py, and compares it with `ringside run`: on one machine, and as two machines would.
#
# Usage: tools/launch/test_torchrun.sh [STEPS]    default 20 steps. torchrun: from $PATH or .env/oracle
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tools/launch/test_common.sh
source tools/launch/test_common.sh

make_folder
trap remove_folder EXIT
prepare "${1:-20}"
launch() { python3 tools/launch/torchrun.py "${recipe[@]}" "$@" >>"$folder/torchrun.log" 2>&1; }
failed() {
  cat "$folder/torchrun.log" >&2
  die "$1"
}
say "torchrun, one node"
launch --run-dir "$folder/one" || failed "the run on one node"
say "torchrun, two nodes with addresses and keys"
rendezvous=127.0.0.1:$(free_port)
launch --run-dir "$folder/two" --nnodes 2 --node-rank 1 --rendezvous "$rendezvous" &
second=$!
launch --run-dir "$folder/two" --nnodes 2 --node-rank 0 --rendezvous "$rendezvous" || failed "node 0 of two"
wait "$second" || failed "node 1 of two"
python3 tools/launch/compare_runs.py "$folder/run" "$folder/one" "$folder/two"
