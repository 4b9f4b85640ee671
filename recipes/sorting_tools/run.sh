#!/usr/bin/env bash
# Runs the recipe: data, warm start, and GRPO with the environment. Usage: recipes/sorting_tools/run.sh [key=value ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ringside=${RINGSIDE:-build/ringside}
run=runs/sorting_tools
[[ -d $run/data ]] || python3 recipes/sorting_tools/make_data.py --out $run/data
[[ -d $run/sft/checkpoint-final ]] || "$ringside" train recipes/sorting_tools/sft.yaml --run-dir $run/sft
"$ringside" run recipes/sorting_tools/grpo.yaml --run-dir $run/grpo "$@"
