# What the launchers' tests by hand share: a folder, a warm-started model, the same run by `ringside run`. To be sourced.
# shellcheck shell=bash

export RINGSIDE=${RINGSIDE:-$PWD/build/ringside}

say() { echo "launch test: $*"; }
die() {
  echo "launch test: error: $*" >&2
  exit 1
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }

make_folder() { folder=$(mktemp -d); }

remove_folder() { rm -rf "$folder"; }

# prepare STEPS: data, warm start, and $folder/run by `ringside run`; sets `recipe`.
prepare() {
  say "data, warm start"
  python3 tools/quickstart_task.py --out "$folder/data" --flawed --sft 2000 --train 500 >/dev/null
  "$RINGSIDE" train recipes/quickstart/sft.yaml --run-dir "$folder/sft" --steps 60 "model.path=$folder/data/model" \
    "data.sft=$folder/data/sft.jsonl" >"$folder/sft.log" 2>&1 || { cat "$folder/sft.log" >&2; die "the warm start failed"; }
  recipe=(recipes/quickstart/grpo.yaml "train.steps=$1" "model.path=$folder/sft/checkpoint-final"
    "data.train=$folder/data/train.jsonl")
  say "ringside run"
  "$RINGSIDE" run "${recipe[@]}" --run-dir "$folder/run" >"$folder/run.log" 2>&1 ||
    { cat "$folder/run.log" >&2; die "the run to compare with failed"; }
}
