#!/usr/bin/env bash
# All tasks with three seeds, one after the other; runs/smollm2/*/summary.json has the curves. About two and a half
# hours on two cores. Usage: recipes/smollm2/run_all.sh [TASK...]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

recipes/smollm2/prepare.sh || exit
tasks=("$@")
((${#tasks[@]})) || tasks=(reverse_words instructions preference)
failed=0
for seed in 1 2 3; do
  for task in "${tasks[@]}"; do
    python3 recipes/smollm2/run.py "$task" --seed "$seed" || failed=1
  done
done
exit "$failed"
