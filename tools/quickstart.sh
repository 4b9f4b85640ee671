#!/usr/bin/env bash
# From nothing to a model that reinforcement learning has improved, in minutes on two cores: makes
# the data of a sorting task whose demonstrations are flawed, warms a random model up on them, then
# lets GRPO repair what they taught wrong.
#
# Usage: tools/quickstart.sh [--ring] [--seed N] [--variant short|long]
#   --ring     train with ring attention over two ranks; without it with Ulysses over two ranks
#   --seed     of the data, the weights and the sampling; default 1
#   --variant  short: the answer alone; long: the working first, 30 tokens and more; default short
# Exits non-zero when the exact match on the test set rises by less than 25 points.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kWantedGain=25

die() {
  echo "quickstart: error: $*" >&2
  exit 2
}

main() {
  local axis=ulysses seed=1 variant=short
  while (($# > 0)); do
    case $1 in
      --ring) axis=ringattn ;;
      --seed | --variant)
        (($# > 1)) || die "$1 needs a value"
        [[ $1 == --seed ]] && seed=$2 || variant=$2
        shift
        ;;
      *) die "unknown option '$1'; expected --ring, --seed N or --variant short|long" ;;
    esac
    shift
  done
  [[ $seed =~ ^[0-9]+$ ]] || die "--seed is '$seed', expected a whole number"
  [[ $variant == short || $variant == long ]] ||
    die "--variant is '$variant', expected short or long"

  tools/setup.sh
  local run data
  run=runs/quickstart-$variant-$axis-seed$seed-$(date +%Y%m%d-%H%M%S)
  data=$run/data
  mkdir -p "$run"
  python3 tools/quickstart_task.py --out "$data" --variant "$variant" --seed "$seed" --flawed

  local common=("seed=$seed" "parallel.${axis}_parallel_size=2")
  local recipes=recipes/quickstart
  [[ $variant == long ]] && recipes=recipes/quickstart_long
  build/ringside train "$recipes/sft.yaml" --nproc 2 --run-dir "$run/sft" "${common[@]}" \
    "model.path=$data/model" "data.sft=$data/sft.jsonl"
  build/ringside run "$recipes/grpo.yaml" --nproc 2 --run-dir "$run/grpo" "${common[@]}" \
    "model.path=$run/sft/checkpoint-final" \
    "data.train=$data/train.jsonl" "data.eval=$data/test.jsonl"

  echo
  echo "checkpoint: $run/grpo/checkpoint-final"
  echo "metrics:    $run/grpo/metrics.jsonl (warm start: $run/sft/metrics.jsonl)"
  echo "logs:       $run/grpo, $run/sft"
  python3 tools/quickstart_gain.py "$run/grpo/metrics.jsonl" "$kWantedGain"
}

main "$@"
