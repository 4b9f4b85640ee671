# Run by tools/check_bundle.sh inside the minimal root, with /bin/sh -eu, as an ordinary user.
cd /opt/BUNDLE

part() {
  begun=$(date +%s)
  name=$1
  shift
  "$@" >/tmp/log 2>&1 || {
    tail -n 40 /tmp/log >&2
    echo "FAILED: $name" >&2
    return 1
  }
  echo "passed: $name, $(($(date +%s) - begun)) s"
}

programs="bin/ringside"
[ ! -e bin/ringside_cuda ] || programs="$programs bin/ringside_cuda"

# Without torch: a message that says what to do, and exit status 2.
without_torch() {
  status=0
  RINGSIDE_TORCH=/nowhere bin/ringside --version >/tmp/missing 2>&1 || status=$?
  cat /tmp/missing
  [ $status -eq 2 ] && grep -q "folder '/nowhere' does not exist" /tmp/missing
}

# Recorded rollouts of the sorting task: random digits, and 1 for those that happen to be sorted.
recorded() {
  python3 - <<'PYTHON'
import json, math, random
random.seed(1)
with open("/tmp/recorded.jsonl", "w") as file:
    for group in range(8):
        prompt = [random.randrange(10) for _ in range(7)]
        for _ in range(4):
            completion = [random.randrange(10) for _ in range(6)]
            file.write(json.dumps(dict(group_id=group, prompt_ids=prompt, completion_ids=completion,
                                       logprobs=[-math.log(10)] * 6, finish_reason="length",
                                       reward=random.random())) + "\n")
PYTHON
}

layout="parallel.ulysses_parallel_size=2 parallel.ringattn_parallel_size=1"
for program in $programs; do
  part "$program --version" $program --version
  cat /tmp/log
done
part "without torch" without_torch
part "data of the sorting task" python3 tools/quickstart_task.py --out /tmp/data --variant short --seed 1 --flawed
part "recorded rollouts" recorded
part "check" bin/ringside check recipes/quickstart/sft.yaml model.path=/tmp/data/model data.sft=/tmp/data/sft.jsonl
for program in $programs; do
  run=/tmp/run-$(basename $program)
  part "$program train, 3 supervised steps on 2 ranks" $program train recipes/quickstart/sft.yaml --run-dir "$run-sft" \
    $layout model.path=/tmp/data/model data.sft=/tmp/data/sft.jsonl --steps 3
  part "$program train, 3 GRPO steps from recorded rollouts on 2 ranks" $program train recipes/quickstart/grpo.yaml \
    --run-dir "$run-grpo" $layout model.path="$run-sft/checkpoint-final" data.train=/tmp/data/train.jsonl \
    rollout.prompts_per_step=2 rollout.group_size=4 --rollouts /tmp/recorded.jsonl --steps 3
  [ "$(wc -l <"$run-grpo/metrics.jsonl")" -eq 3 ]
  sed -n '$p' "$run-grpo/metrics.jsonl" | cut -c 1-200
done
[ "$(echo $programs | wc -w)" -eq 1 ] || cmp /tmp/run-ringside-grpo/checkpoint-final/model.safetensors \
  /tmp/run-ringside_cuda-grpo/checkpoint-final/model.safetensors
while read -r test; do
  part "$test" env TMPDIR=/tmp tests/"$test"
  tail -n 2 /tmp/log | head -n 1
done <tests/torch_free.txt
