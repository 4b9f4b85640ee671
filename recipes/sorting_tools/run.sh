#!/usr/bin/env bash
# Runs the recipe: data, warm start, trainer and one worker with the environment. Usage: recipes/sorting_tools/run.sh [key=value ...]
# Needs a Python with torch, transformers and the bridge's client: .env/oracle (tools/setup.sh --oracle), or $PYTHON.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ringside=${RINGSIDE:-build/ringside}
python=${PYTHON:-.env/oracle/bin/python}
run=runs/sorting_tools
[[ -d $run/data ]] || python3 recipes/sorting_tools/make_data.py --out $run/data
[[ -d $run/sft/checkpoint-final ]] || "$ringside" train recipes/sorting_tools/sft.yaml --run-dir $run/sft
"$ringside" train recipes/sorting_tools/grpo.yaml --run-dir $run/grpo "$@" &
trainer=$!
trap 'kill $trainer 2>/dev/null || true' EXIT
until [[ -f $run/grpo/bridge/endpoint.json ]]; do sleep 0.2; kill -0 $trainer; done
address=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["rollout_address"])' $run/grpo/bridge/endpoint.json)
# The environment samples with the model's shape; its weights come from the trainer, the first ones before the first sample.
cp -r $run/sft/checkpoint-final/. $run/data/model
PYTHONPATH=rollout_bridge/python OMP_NUM_THREADS=1 "$python" recipes/sorting_tools/environment.py "$address" tools0 $run/data
wait $trainer
