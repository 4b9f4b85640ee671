"""What `ringside init --from` makes of configurations of verl, TRL, axolotl and OpenRLHF.

Guards: a value in other units that is copied as it is; a key that vanishes without a word; keys that exclude each other; a file
whose mistake is named without its line; a recipe that `check` refuses for more than missing files.

The configurations are written anew with keys and forms that these systems document (verl 0.9.1, TRL 1.16, axolotl 0.19,
OpenRLHF 0.11.2 and 0.9).

Usage: init_from_test.py RINGSIDE. Standard library only.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

RINGSIDE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support/prestarted"))
import prestarted  # noqa: E402

VERL_SCRIPT = r"""#!/usr/bin/env bash
# GRPO of a small model
set -xeuo pipefail
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-1.5B-Instruct}
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 6))
NGPUS=8
if [ "$1" = large ]; then
  NGPUS=16
fi
DATA=(
    algorithm.adv_estimator=grpo
    data.train_files="['$HOME/data/gsm8k/train.parquet', '$HOME/data/math/train.parquet']"
    data.val_files=$HOME/data/gsm8k/test.parquet
    data.train_batch_size=256
    data.max_prompt_length=${max_prompt_length}   # tokens
    data.max_response_length=${max_response_length}
    data.filter_overlong_prompts=True
    data.truncation='error'
)
python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    actor_rollout_ref.model.path=$MODEL_PATH \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((max_prompt_length + max_response_length) * 2)) \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.002 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True actor_rollout_ref.actor.entropy_from_logits_with_chunking=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    algorithm.use_kl_in_reward=False \
    trainer.logger='["console","wandb"]' \
    trainer.n_gpus_per_node=$NGPUS \
    trainer.nnodes=1 \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    trainer.brand_new_switch=3 \
    trainer.default_hdfs_dir=$HDFS_ROOT/run $@
"""

VERL_YAML = """\
defaults:
  - ppo_trainer
data:
  train_files: [a.parquet, b.parquet]
  train_batch_size: 128
  max_response_length: 2048
actor_rollout_ref:
  model:
    path: models/mine
    lora_rank: 32
  actor:
    optim: {lr: 5e-6, betas: [0.9, 0.95]}
    ppo_mini_batch_size: ${data.train_batch_size}
    ppo_micro_batch_size_per_gpu: 4
    policy_loss: {loss_mode: gspo}
  rollout: {n: 4, temperature: 0.9, top_k: -1}
algorithm:
  adv_estimator: reinforce_plus_plus
  use_kl_in_reward: true
  kl_ctrl: {type: adaptive, kl_coef: 0.01, horizon: 5000, target_kl: 0.2}
trainer: {total_training_steps: 300, test_freq: -1, critic_warmup: 0}
"""

TRL_YAML = """\
# trl grpo --config grpo.yaml
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
dataset_name: trl-lib/DeepMath-103K
reward_funcs: [accuracy_reward, think_format_reward]
reward_weights: [1.0, 0.2]
learning_rate: 2.0e-6
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
steps_per_generation: 16
num_generations: 8
max_completion_length: 1024
max_steps: 400
warmup_ratio: 0.1
lr_scheduler_type: cosine
loss_type: grpo
beta: 0.001
epsilon: 0.2
epsilon_high: 0.28
scale_rewards: false
use_vllm: true
vllm_mode: colocate
vllm_importance_sampling_mode: token_truncate
vllm_importance_sampling_clip_max: 2.0
gradient_checkpointing: true
bf16: true
save_steps: 50
logging_steps: 5
report_to: [wandb]
push_to_hub: false
temperature: 0.8
mystery_flag: 7
"""

TRL_SFT = {"model_name_or_path": "/models/base", "dataset_name": "trl-lib/Capybara", "learning_rate": 2e-4,
           "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_train_epochs": 1, "max_length": 2048,
           "packing": True, "use_peft": True, "lora_r": 32, "lora_alpha": 16, "lora_target_modules": ["q_proj", "v_proj"],
           "lora_dropout": 0.05, "eval_strategy": "no", "assistant_only_loss": False, "deepspeed": None}

AXOLOTL = """\
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: data/chat.jsonl
    type: chat_template
    field_messages: conversation
val_set_size: 0.05
output_dir: ./outputs/out
adapter: qlora
load_in_4bit: true
sequence_len: 4096
sample_packing: true
lora_r: 32
lora_alpha: 64
lora_dropout: 0.05
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 3
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 0.0002
warmup_steps: 10
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
weight_decay: 0.01
wandb_project:
special_tokens: {pad_token: <|end_of_text|>}
saves_per_epoch: 1
"""

AXOLOTL_GRPO = """\
base_model: Qwen/Qwen2.5-1.5B-Instruct
rl: grpo
trl:
  use_vllm: false
  num_generations: 4
  max_completion_length: 512
  beta: 0.04
  reward_funcs: [rewards.right_number]
datasets: [{path: openai/gsm8k, type: rewards.transform}]
sequence_len: 1024
micro_batch_size: 8
gradient_accumulation_steps: 2
max_steps: 120
learning_rate: 1.0e-6
"""

OPENRLHF = r"""
python3 -m openrlhf.cli.train_ppo_ray \
   --actor.num_nodes 1 --actor.num_gpus_per_node 8 \
   --vllm.num_engines 4 --vllm.gpu_memory_utilization 0.6 \
   --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3 \
   --algo.advantage.estimator group_norm \
   --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 \
   --actor.eps_clip_low_high 0.2 0.27 \
   --actor.model_name_or_path meta-llama/Llama-3.1-8B-Instruct \
   --reward.remote_url /data/reward_func.py \
   --train.batch_size 128 --train.micro_batch_size 8 \
   --rollout.batch_size 64 --rollout.n_samples_per_prompt 8 \
   --data.max_len 4096 --rollout.max_new_tokens 3072 --data.max_samples 12800 \
   --data.prompt_dataset prompts.jsonl --data.input_key question --data.label_key answer --data.apply_chat_template \
   --actor.adam.lr 5e-7 --ds.ring_attn_size 2 --ds.zero_stage 3 --actor.gradient_checkpointing_enable \
   --ds.packing_samples --ckpt.save_steps 20 2>&1 | tee log.txt
"""

# Settings in a variable, which is split at its blanks, and lines of a here-document.
OPENRLHF_SFT = r"""
LENGTHS="--data.max_len 4096 --train.micro_batch_size 2"
read -r -d '' command <<EOF
openrlhf.cli.train_sft $LENGTHS \
   --data.dataset chats.jsonl --data.input_key question --data.output_key response \
   --train.batch_size 64 --train.max_epochs 1 --adam.lr 1e-5 --model.model_name_or_path models/base
EOF
deepspeed --module $command
"""

OPENRLHF_OLD = ("python -m openrlhf.cli.train_ppo_ray --pretrain models/base --prompt_data p.jsonl --rollout_batch_size 32 "
                "--n_samples_per_prompt 4 --train_batch_size 128 --advantage_estimator rloo --init_kl_coef 0.01 "
                "--actor_learning_rate 1e-6 --prompt_max_len 512 --generate_max_len 1024 --max_samples 6400\n")


def keys_of(recipe: str) -> dict[str, str]:
    """Dotted keys and values of a recipe, without quotes and comments."""
    found, path = {}, []
    for line in recipe.splitlines():
        match = re.match(r"( *)([a-z_0-9]+):(?: (.*?))?(?:  # .*)?$", line)
        if match and not line.startswith("#"):
            path = path[:len(match.group(1)) // 2] + [match.group(2)]
            if match.group(3) is not None:
                found[".".join(path)] = json.loads(match.group(3)) if match.group(3).startswith('"') else match.group(3)
    return found


def names_in(text: str) -> list[str]:
    """Last words of the keys of a configuration, of YAML, of JSON or of a command line."""
    names = re.findall(r"^ *\"?([a-z_0-9]+)\"?: *[^ \n{]", text, re.MULTILINE) + re.findall(r"[ {]([a-z_0-9]+): ", text)
    names += [name.split(".")[-1] for name in re.findall(r"^ +([a-z_.0-9]+)=", text, re.MULTILINE)]
    names += [name.split(".")[-1] for name in re.findall(r"--([a-z_.0-9]+)", text)]
    assert names, text
    return [name for name in names if name not in ("path", "defaults", "if", "module")]


class InitFrom(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.recipe = self.folder / "recipe.yaml"

    def init(self, name: str, text: str, *words: str) -> subprocess.CompletedProcess:
        (self.folder / name).write_text(text)
        return prestarted.run([RINGSIDE, "init", "--from", name, *words], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)

    def translated(self, name: str, text: str, *words: str, **expected) -> tuple[dict[str, str], str]:
        """Keys of the recipe, which `check` refuses for missing files alone, and what was said."""
        done = self.init(name, text, *words)
        self.assertEqual(done.returncode, 0, done.stdout)
        recipe = self.recipe.read_text()
        keys = keys_of(recipe)
        self.assertEqual([name for name in names_in(text) if name not in recipe], [], "keys that vanished")
        missing = re.compile(r"does not exist|no file matches|FileNotFoundError|mistakes?; nothing was started")
        ended = prestarted.run([RINGSIDE, "check", "recipe.yaml"], cwd=self.folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual([line for line in ended.stderr.splitlines() if line and not missing.search(line)], [])
        self.assertEqual({key: keys.get(key) for key in expected.get("keys", {})}, expected.get("keys", {}))
        for key in expected.get("absent", ()):
            self.assertNotIn(key, keys)
        return keys, done.stdout

    def refused(self, name: str, text: str, *parts: str):
        done = self.init(name, text)
        self.assertEqual(done.returncode, 2, done.stdout)
        for part in parts:
            self.assertIn(part, done.stdout)
        self.assertFalse(self.recipe.exists())

    def test_a_script_of_verl(self):
        _, said = self.translated("grpo.sh", VERL_SCRIPT, keys={
            "model.path": "models/Qwen2.5-1.5B-Instruct", "data.train": "[~/data/gsm8k/train.parquet, ~/data/math/train.parquet]",
            "data.eval": "~/data/gsm8k/test.parquet", "data.answer_key": "reward_model.ground_truth",
            "data.on_overlong": "drop", "rollout.prompts_per_step": "256", "rollout.max_prompt_tokens": "2048",
            "rollout.max_completion_tokens": "6144",
            "train.num_mini_batches": "4",              # a count here, a size there
            "train.tokens_per_micro_batch": "32768",    # 16384 a GPU x 2 ranks of a sequence
            "optimizer.warmup_steps": "40",             # 10 steps of 4 optimizer steps
            "optimizer.offload": "moments", "parallel.ulysses_parallel_size": "2",
            "parallel.data_parallel_shard_size": "2",   # 8 GPUs / 2 / 2
            "parallel.tensor_parallel_size": "2",
            "algorithm.preset": "verl", "algorithm.kl_coef": "0.002", "algorithm.clip_high": "0.28",
            "algorithm.loss_aggregation": "seq_mean_token_mean", "checkpoint.every": "20", "eval.every": "5",
        }, absent=["algorithm.clip_low", "optimizer.learning_rate", "rollout.group_size", "train.steps", "rollout.server"])
        for part in ("unknown here:\n  trainer.brand_new_switch: 3, line 49", "its value needs $HDFS_ROOT",
                     "actor_rollout_ref.actor.clip_ratio_low: 0.2, line 33: algorithm.clip_low", "start a server",
                     "entropy_from_logits_with_chunking: True, line 36: is model.logit_chunk_mb here, of another kind",
                     "trainer.total_epochs: 15, line 48", "train.steps: 15 x the number of prompts / 256",
                     "line 9 sets NGPUS in a branch", "hf download Qwen/Qwen2.5-1.5B-Instruct"):
            self.assertIn(part, said)
        recipe = self.recipe.read_text()
        self.assertIn("num_mini_batches: 4  # 256 prompts / actor_rollout_ref.actor.ppo_mini_batch_size: 64, line 26", recipe)

    def test_a_nested_file_of_verl(self):
        _, said = self.translated("ppo.yaml", VERL_YAML, keys={
            "train.steps": "300", "data.train": "[a.parquet, b.parquet]", "model.path": "models/mine",
            "rollout.prompts_per_step": "128", "rollout.group_size": "4", "rollout.temperature": "0.9",
            "train.tokens_per_micro_batch": "10240",  # 4 samples of 512 + 2048 tokens
            "algorithm.advantage.estimator": "reinforce", "algorithm.advantage.whiten": "tokens",
            "algorithm.importance_level": "sequence", "algorithm.kl_in": "reward", "algorithm.kl_coef": "0.01",
            "algorithm.kl_target": "0.2", "algorithm.kl_horizon": "5000", "algorithm.kl_estimator": "k1",
            "optimizer.beta2": "0.95", "optimizer.learning_rate": "5e-06", "lora.rank": "32", "lora.alpha": "16",
            "model.recompute": "full", "model.dtype": "bfloat16",
        }, absent=["train.num_mini_batches", "rollout.top_k"])  # one mini-batch: the reference was followed
        self.assertIn('the files of Hydra\'s list "defaults" are not read', said)

    def test_bypass_mode_and_remax_of_verl(self):
        changes = (("adv_estimator: reinforce_plus_plus",
                    "adv_estimator: remax\n  rollout_correction: {bypass_mode: true, loss_type: reinforce, rollout_is: sequence, "
                    "rollout_is_threshold: 3.0, rollout_rs: 'token_k1,seq_max_k2', rollout_rs_threshold: '0.6_1.6,0.3'}"),
                   ("    policy_loss: {loss_mode: gspo}\n", ""), ("  use_kl_in_reward: true\n", ""),
                   ("  kl_ctrl: {type: adaptive, kl_coef: 0.01, horizon: 5000, target_kl: 0.2}\n", ""))
        text = VERL_YAML
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new)
        self.translated("bypass.yaml", text, keys={
            "algorithm.advantage.estimator": "remax", "algorithm.old_logprobs": "rollout", "algorithm.loss": "reinforce",
            "algorithm.correction.ratio_of": "current", "algorithm.correction.mode": "tis",
            "algorithm.correction.level": "sequence", "algorithm.correction.high": "3"})
        self.assertIn("{by: token_k1, low: 0.6, high: 1.6}, {by: seq_max_k2, high: 0.3}", self.recipe.read_text())

    def test_a_file_of_trl(self):
        keys = {
            "algorithm.preset": "trl_grpo", "rollout.prompts_per_step": "32",  # 4 x 16 x 4 processes / 8
            "train.num_mini_batches": "2", "train.steps": "200",               # max_steps are optimizer steps
            "optimizer.warmup_steps": "40", "checkpoint.every": "25", "optimizer.learning_rate": "2e-06",
            "optimizer.lr_schedule": "cosine", "algorithm.kl_coef": "0.001", "algorithm.clip_high": "0.28",
            "algorithm.advantage.std": "none", "algorithm.correction.mode": "tis",
            "rollout.max_completion_tokens": "1024", "rollout.temperature": "0.8", "data.chat_template": "model",
            "rollout.reward": "math_answer, regex * 0.2", "data.answer_key": "solution", "model.recompute": "full",
        }
        _, said = self.translated("grpo.yaml", TRL_YAML, "--gpus", "4", keys=keys)
        for part in ("unknown here:\n  mystery_flag: 7, line 31", "logging_steps: 5, line 27: metrics are written at every step",
                     "vllm_mode", "ringside-follow", "hf download --repo-type dataset trl-lib/DeepMath-103K"):
            self.assertIn(part, said)

    def test_a_command_line_of_trl_counts_the_launchers_processes(self):
        words = " ".join(f"--{key} {value}" for key, value in (
            ("model_name_or_path", "m"), ("per_device_train_batch_size", 2), ("num_generations", 4), ("max_steps", 10), ("lr_scheduler_type", "cosine"),
            ("learning-rate", "3e-6")))
        self.translated("run.sh", f"accelerate launch --num_processes 6 trl grpo {words} --bf16 --learning_rate 4e-6\n", keys={
            "rollout.prompts_per_step": "3", "rollout.group_size": "4", "train.steps": "10", "optimizer.learning_rate": "4e-06",
            "optimizer.lr_schedule": "cosine"})
        self.assertIn("learning_rate: 3e-6, line 1: line 1 sets it again", self.recipe.read_text())

    def test_supervised_fine_tuning_of_trl_from_json(self):
        _, said = self.translated("sft.json", json.dumps(TRL_SFT, indent=1), keys={
            "algorithm.task": "sft", "train.batch_size": "8", "train.epochs": "1", "data.max_length": "2048",
            "data.on_overlong": "truncate", "lora.rank": "32", "lora.alpha": "16", "lora.target_modules": "q_proj, v_proj",
            "optimizer.lr_schedule": "linear", "model.dtype": "bfloat16", "data.sft": "data/Capybara/*.parquet",
        }, absent=["rollout.reward", "algorithm.preset"])
        self.assertIn("lora_dropout", said)
        self.assertIn("documents are always packed", said)

    def test_axolotl(self):
        _, said = self.translated("qlora.yml", AXOLOTL, "--gpus", "2", keys={
            "algorithm.task": "sft", "data.sft": "data/chat.jsonl", "data.messages_key": "conversation",
            "train.batch_size": "16", "train.tokens_per_micro_batch": "8192", "data.max_length": "4096", "train.epochs": "3",
            "lora.rank": "32", "lora.alpha": "64", "lora.base": "nf4", "optimizer.warmup_steps": "10",
            "optimizer.weight_decay": "0.01", "optimizer.learning_rate": "2e-04", "model.dtype": "bfloat16",
        }, absent=["lora.target_modules"])  # the default already
        for part in ("val_set_size", "saves_per_epoch", "wandb_project: null", "tf32: false"):
            self.assertIn(part, said)
        self.recipe.unlink()
        self.translated("grpo.yml", AXOLOTL_GRPO, keys={
            "algorithm.preset": "trl", "rollout.prompts_per_step": "4", "rollout.group_size": "4",
            "rollout.reward": "python(rewards.py:right_number)", "algorithm.kl_coef": "0.04", "train.steps": "120"})

    def test_openrlhf(self):
        _, said = self.translated("ppo.sh", OPENRLHF, keys={
            "algorithm.preset": "openrlhf", "rollout.prompts_per_step": "64", "rollout.max_completion_tokens": "3072",
            "rollout.max_prompt_tokens": "1024", "train.num_mini_batches": "4",  # 64 x 8 samples / 128
            "train.steps": "200", "train.tokens_per_micro_batch": "32768", "algorithm.kl_in": "loss",
            "algorithm.kl_estimator": "k3", "algorithm.kl_coef": "0.001", "algorithm.clip_high": "0.27",
            "algorithm.dynamic_sampling": "refill", "rollout.reward": "python(/data/reward_func.py:reward_func)",
            "data.prompt_key": "question", "data.text_prompts": "user", "parallel.ringattn_parallel_size": "2",
            "parallel.data_parallel_shard_size": "4", "optimizer.learning_rate": "5e-07", "optimizer.beta2": "0.95",
            "optimizer.min_lr_ratio": "0.1", "optimizer.warmup_steps": "24",  # 0.03 of 800
        })
        self.assertIn("(queries, prompts, labels)", said)
        self.recipe.unlink()
        self.translated("old.sh", OPENRLHF_OLD, keys={
            "model.path": "models/base", "rollout.prompts_per_step": "32", "rollout.group_size": "4", "train.steps": "200",
            "rollout.max_completion_tokens": "1024", "algorithm.advantage.std": "none",
            "algorithm.advantage.estimator": "rloo"})

    def test_words_of_a_variable_and_of_a_here_document(self):
        self.translated("sft.sh", OPENRLHF_SFT, keys={
            "algorithm.task": "sft", "data.max_length": "4096", "train.tokens_per_micro_batch": "8192", "train.batch_size": "64",
            "train.epochs": "1", "data.prompt_key": "question", "data.completion_key": "response",
            "optimizer.learning_rate": "1e-05", "model.path": "models/base"})

    def test_mistakes_of_a_file_have_its_name_and_line(self):
        cases = (
            ("a.yaml", "model_name_or_path: m\nbeta: [1\nepsilon: 2\n", ("a.yaml:3:", "not valid YAML or JSON")),
            ("b.yaml", "base_model: m\nlearning_rate: 1e-5\nlearning_rate: 2e-5\n",
             ("b.yaml:3:1: learning_rate: is there twice; it is already set on line 2",)),
            ("c.yaml", "- a\n- b\n", ("c.yaml:1:1", "expected one mapping")),
            ("d.json", '{"num_generations": 8, "beta": "high"}', ("d.json:1: beta: is \"high\", expected a number",)),
            ("e.sh", "python -m verl.trainer.main_ppo 'data.x=1\n", ("e.sh:1: the quote ' that begins here has no end",)),
            ("f.sh", "trl grpo --beta 1\ntrl sft --packing\n", ("f.sh: starts 2 trainers, on lines 1, 2",)),
            ("g.yaml", "learning_rate: 1\nshape: round\n", ("is of no system that is known here",)),
            ("h.yaml", "base_model: m\nrl: dpo\n", ("h.yaml:2: rl: is \"dpo\", expected grpo",)),
            ("i.sh", "deepspeed --module openrlhf.cli.train_dpo --dataset d\n", ("expected train_ppo_ray or train_sft",)),
            ("nothing.yaml", "", ("nothing.yaml:1:1",)),
        )
        for name, text, parts in cases:
            with self.subTest(name):
                self.recipe.unlink(missing_ok=True)
                self.refused(name, text, *parts)

    def test_keys_that_exclude_each_other_are_a_mistake(self):
        begin = "model_name_or_path: m\nnum_generations: 4\nper_device_train_batch_size: 4\n"
        for text, parts in (
                ("generation_batch_size: 8\nsteps_per_generation: 2\n", ("x.yaml:4: generation_batch_size", "line 5")),
                ("bf16: true\nfp16: true\n", ("x.yaml:5: fp16: is set together with bf16",)),
                ("reward_funcs: [accuracy_reward]\nreward_weights: [1, 2]\n", ("x.yaml:5: reward_weights: has 2 weights for 1",)),
                ("loss_type: luspo\n", ("x.yaml:4: loss_type: is \"luspo\"",)),
                ("generation_batch_size: 6\n", ("prompts a step would be 6 / 4, expected a whole number",))):
            with self.subTest(text):
                self.refused("x.yaml", begin + text, *parts)
        self.refused("y.sh", "python -m verl.trainer.main_ppo data.train_batch_size=100 "
                     "actor_rollout_ref.actor.ppo_mini_batch_size=64\n", "mini-batches a step would be 100 / 64")
        self.refused("z.yaml", "actor_rollout_ref:\n  actor: {grad_clip: 1.5, optim: {clip_grad: 2}}\n",
                     "optimizer.max_grad_norm would be 1.5", "expected one of the two")

    def test_what_the_recipe_would_not_read_is_listed_with_the_reason(self):
        _, said = self.translated("x.yaml", "model_name_or_path: m\nbeta: 0.0\nsync_ref_model: true\nref_model_mixup_alpha: 0.5\n"
                                  "top_p: 1.5\n", absent=["rollout.top_p", "algorithm.reference_mixup"])
        for part in ("top_p: 1.5, line 5: rollout.top_p is \"1.5\"", "ref_model_mixup_alpha: 0.5, line 4"):
            self.assertIn(part, said)

    def test_options_that_the_file_answers_are_refused(self):
        done = self.init("x.yaml", "base_model: m\n", "--model", "other")
        self.assertEqual((done.returncode, "together with --from" in done.stdout), (2, True), done.stdout)


if __name__ == "__main__":
    unittest.main()
