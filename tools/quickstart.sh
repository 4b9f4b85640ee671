#!/usr/bin/env bash
# From nothing to a model that reinforcement learning has improved, in minutes on two cores: makes
# the data of a sorting task whose demonstrations are flawed, warms a random model up on them, then
# lets GRPO repair what they taught wrong.
#
# Usage: tools/quickstart.sh [--ring|--tensor|--pipeline] [--seed N] [--variant short|long] [--model dense|moe|hybrid|vision|smollm2]
#   --ring     train with ring attention over two ranks; without it with Ulysses over two ranks
#   --tensor   train with two tensor-parallel ranks
#   --pipeline train with a pipeline of two stages
#   --seed     of the data, the weights and the sampling; default 1
#   --variant  short: the answer alone; long: the working first, 30 tokens and more; default short
#   --model    dense: a Qwen3; moe: a Qwen3-MoE of 4 experts, of which each rank holds 2; hybrid: a
#              Qwen3.5 with gated delta nets; vision: a Qwen3-VL that counts squares in images
#              (recipes/vision; no pipeline, no long variant); smollm2: no random model but a pretrained one of 135M
#              parameters and its first task, recipes/smollm2 (1 GB, a quarter of an hour; one rank);
#              default dense
# Exits non-zero when the exact match on the test set rises by less than 25 points.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kWantedGain=25

say() { echo "quickstart: $*"; }
die() {
  echo "quickstart: error: $*" >&2
  exit 2
}

main() {
  local axis=ulysses seed=1 variant=short model=dense
  while (($# > 0)); do
    case $1 in
      --ring) axis=ring ;;
      --tensor) axis=tensor ;;
      --pipeline) axis=pipeline ;;
      --seed | --variant | --model)
        (($# > 1)) || die "$1 needs a value"
        local -n option=${1#--}
        option=$2
        shift
        ;;
      *) die "unknown option '$1'; expected --ring, --tensor, --pipeline, --seed N, --variant short|long or --model dense|moe|hybrid|vision|smollm2" ;;
    esac
    shift
  done
  [[ $seed =~ ^[0-9]+$ ]] || die "--seed is '$seed', expected a whole number"
  [[ $variant == short || $variant == long ]] ||
    die "--variant is '$variant', expected short or long"
  [[ $model == dense || $model == moe || $model == hybrid || $model == vision || $model == smollm2 ]] ||
    die "--model is '$model', expected dense, moe, hybrid, vision or smollm2"
  [[ $model != vision || ($axis != pipeline && $variant == short) ]] ||
    die "--model vision takes neither --pipeline nor --variant long"
  [[ $model != smollm2 || ($axis == ulysses && $variant == short) ]] ||
    die "--model smollm2 takes neither --ring, --tensor, --pipeline nor --variant"
  [[ $model != moe || $axis != pipeline ]] ||
    die "--model moe divides its experts over the ranks of a stage, and --pipeline leaves one there"

  tools/setup.sh --no-tests
  if [[ $model == smollm2 ]]; then
    recipes/smollm2/prepare.sh
    exec python3 recipes/smollm2/run.py reverse_words --seed "$seed"
  fi
  local run data
  run=runs/quickstart-$variant-$model-$axis-seed$seed-$(date +%Y%m%d-%H%M%S)
  data=$run/data
  mkdir -p "$run"
  if [[ $model == vision ]]; then
    python3 recipes/vision/make_data.py --out "$data" --seed "$seed"
  else
    python3 tools/quickstart_task.py --out "$data" --model "$model" --variant "$variant" --seed "$seed" --flawed
  fi

  local layout=(parallel.ulysses_parallel_size=2 parallel.ringattn_parallel_size=1)
  [[ $axis == ring ]] && layout=(parallel.ulysses_parallel_size=1 parallel.ringattn_parallel_size=2)
  [[ $axis == tensor ]] && layout=(parallel.ulysses_parallel_size=1 parallel.tensor_parallel_size=2)
  [[ $axis == pipeline ]] && layout=(parallel.ulysses_parallel_size=1 parallel.pipeline_parallel_size=2
    train.tokens_per_micro_batch=2048)  # a pipeline needs several
  [[ $model == moe ]] && layout+=(parallel.expert_parallel_size=2)
  local recipe=recipes/quickstart
  [[ $variant == long ]] && recipe=recipes/quickstart_long
  [[ $model == vision ]] && recipe=recipes/vision

  say "warm start: supervised fine-tuning on demonstrations of which more than half are wrong"
  build/ringside train "$recipe/sft.yaml" --run-dir "$run/sft" "seed=$seed" "${layout[@]}" \
    "model.path=$data/model" "data.sft=$data/sft.jsonl"
  # Ranks and workers take turns, so as many workers as ranks keep the cores busy in both.
  say "GRPO: two trainer ranks, two rollout workers, a reward that knows the right answer"
  build/ringside run "$recipe/grpo.yaml" --run-dir "$run/grpo" "seed=$seed" "${layout[@]}" \
    "model.path=$run/sft/checkpoint-final" "data.train=$data/train.jsonl" rollout.num_workers=2
  say "greedy exact match on the test set, before and after"
  local stage
  for stage in sft grpo; do
    build/ringside generate --model "$run/$stage/checkpoint-final" --input "$data/test.jsonl" \
      --output "$run/$stage/test.jsonl" "$recipe/grpo.yaml" | tee "$run/$stage/test.json"
  done

  echo
  echo "checkpoint: $run/grpo/checkpoint-final"
  echo "metrics:    $run/grpo/metrics.jsonl, TensorBoard files in $run/grpo/tensorboard"
  echo "warm start: $run/sft"
  python3 tools/quickstart_gain.py "$run" "$kWantedGain"
}

main "$@"
