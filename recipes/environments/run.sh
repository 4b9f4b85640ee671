#!/usr/bin/env bash
# Runs one of the recipes: records, demonstrations, warm start and GRPO in the environment.
#
# Usage: recipes/environments/run.sh reasoning_gym|textarena|openenv|verifiers [key=value ...]
#   PYTHON    the Python that has the environment's package (python3)
#   RINGSIDE  the program (build/ringside)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly name=${1:?"usage: run.sh reasoning_gym|textarena|openenv|verifiers [key=value ...]"}
shift
readonly ringside=${RINGSIDE:-build/ringside} python=${PYTHON:-python3} here=recipes/environments run=runs/environments/$name
# verifiers finds its environments as modules.
readonly command="env PYTHONPATH=$here $python"

if [[ $name == openenv ]]; then
  "$python" $here/openenv_server.py &
  server=$!
  trap 'kill "$server"' EXIT
  for _ in {1..100}; do
    curl --silent --fail --output /dev/null http://127.0.0.1:8123/health && break
    sleep 0.2
  done
fi
mkdir -p "$run"
settings=($here/grpo.yaml "$here/$name.yaml" "rollout.harness_options.python_command=$command" "data.train=$run/train.jsonl"
  "data.eval=$run/eval.jsonl" eval.every=50 eval.by=workers "model.path=$run/sft/checkpoint-final")
if [[ ! -s $run/eval.jsonl ]]; then
  "$ringside" records "${settings[@]}" --count 4256 --out "$run/records.jsonl"
  head -n 4000 "$run/records.jsonl" >"$run/train.jsonl"
  tail -n 256 "$run/records.jsonl" >"$run/eval.jsonl"
fi
if [[ ! -d $run/sft/checkpoint-final ]]; then
  $command $here/demonstrations.py "$name" --records "$run/train.jsonl" --out "$run"
  warm_start=($here/sft.yaml "model.path=$run/model" "data.sft=$run/sft.jsonl")
  # TextArena's conversations are long and soon learned; the sums are not.
  [[ $name != textarena ]] || warm_start+=(train.steps=400)
  "$ringside" train "${warm_start[@]}" --run-dir "$run/sft"
fi
"$ringside" run "${settings[@]}" --run-dir "$run/grpo" "$@"
