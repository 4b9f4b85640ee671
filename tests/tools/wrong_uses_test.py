"""Wrong configurations and uses of the program, one row each: words, exit code, and what the message must hold.

Guards: a mistake that is taken; a message without the place or what was expected; a wrong exit code; a process or a run
directory that is left by a command that should have started nothing; a stack trace or a library's own text.

Usage: wrong_uses_test.py RINGSIDE SPAWN_RECORDER. Standard library only.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDER = pathlib.Path(sys.argv.pop(2)).resolve()
RINGSIDE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests/tools"))
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
import quickstart_task  # noqa: E402
from tiny_weights import shapes_of, write_weights  # noqa: E402

LIBRARY_TEXT = ("[json.exception", "frame #", "Exception raised from", "terminate called", "what():", "yaml-cpp", "libc++abi")

# `check good.yaml WORDS`: exit code 2, and "command line: KEY: " where a key is the place.
VALUES = [
    ("rollout.grup_size=4", "rollout.grup_size: unknown key; did you mean rollout.group_size?"),
    ("train.learning_rate=1", "did you mean optimizer.learning_rate?"),
    ("zzz=1", "zzz: unknown key; `ringside check --defaults` lists every key"),
    ("num_generations=8", "is rollout.group_size"),
    ("lora_r=8", "is lora.rank"),
    ("report_to=wandb", "ringside-follow RUN_DIR --to wandb"),
    ("fsdp=full_shard", "is parallel.data_parallel_shard_size"),
    ("tensor_parallel_size=2", "did you mean parallel.tensor_parallel_size?"),
    ("num_train_epochs=3", "is train.epochs"),
    ("gradient_accumulation_steps=4", "is derived here from train.tokens_per_micro_batch"),
    ("train.steps=many", 'train.steps: is "many", expected an integer, at least 1'),
    ("train.steps=1.5", 'train.steps: is "1.5", expected an integer'),
    ("train.steps=99999999999999999999", "train.steps: is \"99999999999999999999\", expected an integer"),
    ("train.steps=", "train.steps: is empty, expected an integer"),
    ("rollout.group_size=0", 'rollout.group_size: is "0", expected at least 1'),
    ("seed=-1", 'seed: is "-1", expected at least 0'),
    ("optimizer.learning_rate=fast", "expected a number"),
    ("optimizer.beta1=1", "optimizer.beta1: is \"1\", expected at least 0 and below 1"),
    ("rollout.temperature=nan", "rollout.temperature: is \"nan\", expected above 0"),
    ("rollout.temperature=0", "expected above 0"),
    ("rollout.top_p=2", "expected above 0 and at most 1"),
    ("data.shuffle=yes", "expected true or false"),
    ("algorithm.loss=ppo", "expected one of ppo_clip, cispo"),
    ("model.dtype=fp8", "expected one of float32, bfloat16"),
    ("algorithm.preset=grpoo", "expected one of none, grpo"),
    ("algorithm.task=grpo", "did you mean rl (and algorithm.preset: grpo)?"),
    ("model.dtype=bf16", "did you mean bfloat16?"),
    ("optimizer.learning_rate=1000", "expected at least 0 and at most 1"),
    ("rollout.group_size=1000000", "expected at least 1 and at most 65536"),
    ("rollout.temperature=100", "expected above 0 and at most 10"),
    ("rollout.reward=math_answer*0", "where every weight is 0"),
    ("train.batch_size=64", "only algorithm.task sft, dpo and reward_model read it"),
    ("rollout.server_options.url=http://x", "rollout.server is embedded"),
    ("data.eval=good.jsonl", "eval.every is not set"),
    ("data.eval=nowhere.jsonl eval.every=0", "nowhere.jsonl"),
    ("lora.rank=1000", "but the model is 16 wide"),
    ("rollout.reward=exact", "reward 'exact' is unknown"),
    ("rollout.reward=exact_match * x", "rollout.reward: "),
    ("rollout.reward=length, length", "rollout.reward: "),
    ("rollout=4", "rollout: is a section; expected one of its keys"),
    ("rollout.group_size=1", "measures each sample against its group; expected at least 2"),
    ("train.num_mini_batches=99", "a step has 4 samples; expected at most that"),
    ("algorithm.reward.overlong_buffer_tokens=99", "more than rollout.max_completion_tokens 4"),
    ("algorithm.ppo_clip.dual_clip=0.5", "expected above 1, or 0"),
    ("algorithm.kl_target=0.1", "algorithm.kl_coef is 0"),
    ("algorithm.loss_divisor=3", "expected 0.0, or loss_aggregation constant"),
    ("algorithm.importance_level=sequence algorithm.loss=gmpo", "algorithm.importance_level: is sequence"),
    ("algorithm.correction.mode=tis algorithm.old_logprobs=rollout", "there is nothing to correct; expected none"),
    ("parallel.context_parallel_size=2 parallel.ringattn_parallel_size=2", "parallel.context_parallel_size: is 2, but"),
    ("parallel.zero_stage=2", "but every rank holds the whole model"),
    ("parallel.ulysses_parallel_size=8", "but the model has 4 query heads"),
    ("model.offload_parameters=true", "expected optimizer.offload full, or false"),
    ("model.mlp_tile_tokens=8", "but model.recompute is none"),
    ("sp.virtual_ranks=4", "is 4 virtual ranks, but parallel.* asks for 1"),
    ("sp.ring_impl=all_gather", "but there is no ring attention"),
    ("sp.async_ulysses=true", "but there is no Ulysses exchange"),
    ("sp.method=ring", "factors parallel.context_parallel_size, but that is 0"),
    ("sp.device_speeds=H900 parallel.ringattn_parallel_size=2", "neither a file nor a known device"),
    ("lora.alpha=8", "but lora.rank is 0"),
    ("lora.rank=8 lora.target_modules=qproj", "lora.target_modules: "),
    ("lora.rank=8 lora.path=/nowhere", "lora.path: "),
    ("bridge.curve.trainer_secret=/x", "expected both or neither"),
    ("bridge.worker_timeout_s=0.5", "heartbeats come every bridge.heartbeat_s"),
    ("bridge.rollout_address=tcp://127.0.0.1:7 bridge.weights_address=tcp://127.0.0.1:7", "expected an address of its own"),
    ("bridge.rollout_address=localhost:7001", "expected tcp://HOST:PORT or ipc://PATH"),
    ("bridge.rollout_address=tcp://127.0.0.1:99999", "expected a port of 0 to 65535"),
    ("eval.every=5", "but data.eval is empty"),
    ("eval.by=servers", "expected one of embedded, workers"),
    ("eval.by=workers rollout.reward=worker", "eval.by: is workers, but rollout.reward is worker"),
    ("eval.by=workers rollout.server=llama_cpp", "llama_cpp samples at temperature 1 only"),
    ("eval.by=workers algorithm.task=sft", "eval.by: is workers, but algorithm.task sft has none"),
    ("checkpoint.keep_best=true", "but nothing is evaluated"),
    ("train.epochs=2", "but only algorithm.task sft, dpo and reward_model read it"),
    ("algorithm.task=sft algorithm.preset=grpo", "but algorithm.task is sft"),
    ("algorithm.task=sft", "data.sft is not set"),
    ("rollout.top_k=5", "which cannot be trained on"),
    ("algorithm.advantage.estimator=given", "bring no advantages"),
    ("rollout.server=llama_cpp rollout.server_options.weights=restart", "rollout.server_options.start_command is not set"),
    ("rollout.server=vllm rollout.server_options.url=ftp://x", "rollout.server_options.url: "),
    ("rollout.reward=http", "rollout.reward: "),
    ("rollout.max_completion_tokens=500", "together more than the model's positions"),
    ("rollout.max_prompt_tokens=2", "good.jsonl:1 has 4 tokens"),
    ("model.path=", "model.path is not set"),
    ("model.path=nowhere", "nowhere, which does not exist"),
    ("model.path=Qwen/Qwen3-0.6B", "hf download Qwen/Qwen3-0.6B"),
    ("model.path=~/models/x", "/models/x, which does not exist"),
    ("model.path=good.jsonl", "expected a directory"),
    ("model.path=run", "/run/checkpoint-final"),
    ("model.path=gpt2", "gpt2/config.json: 'model_type' is 'gpt2'"),
    ("model.path=broken", "broken/config.json"),
    ("model.path=bare", "bare/tokenizer.json"),
    ("data.train=nowhere.jsonl", "nowhere.jsonl"),
    ("data.train=broken.jsonl", "broken.jsonl:2"),
    ("data.train=noprompt.jsonl", "noprompt.jsonl:1"),
    ("data.train=messages.jsonl", "messages.jsonl:1"),
    ("train.steps", "train.steps: is a key without a value; expected train.steps=VALUE"),
    ("train.steps = 3", "train.steps = 3: expected train.steps=3, without blanks"),
    ("train.steps:3", "expected train.steps=3"),
    ("=3", "expected key.sub=value"),
    ("nowhere.yaml", "nowhere.yaml: cannot be read, expected a YAML file"),
    ("model", "model: cannot be read, expected a YAML file"),
]

# A recipe's text, and the place and message that `check` gives.
RECIPES = [
    ("rollout:\n  group_size: [4\n", "bad.yaml:3:1: not valid YAML"),
    ("seed: 1\nseed: 2\n", "bad.yaml:2:1: seed: duplicate key; it is already set on line 1"),
    ("train:\n  steps: [1, 2]\n", "bad.yaml:2:3: train.steps: is a list, expected a single value"),
    ("seed:\n  value: 1\n", "bad.yaml:1:1: seed: is a mapping, expected a single value"),
    ("seed:\n", "bad.yaml:1:1: seed: has no value"),
    ("seed: 1\n---\nseed: 2\n", "bad.yaml: holds 2 YAML documents, expected one"),
    ("- seed: 1\n", "bad.yaml:1:1: the document is not a mapping"),
    ("rollout: 4\n", "bad.yaml:1:1: rollout: is a section; expected a mapping"),
    ("trainer:\n  n_gpus_per_node: 8\n", "bad.yaml:2:3: trainer.n_gpus_per_node: unknown key; the launcher says how many"),
    ("rollout:\n  temperature: hot\n", "bad.yaml:2:3: rollout.temperature: is \"hot\""),
]

# Any command line, its exit code, and its message.
COMMANDS = [
    ((), 2, "A subcommand is required"),
    (("trian",), 2, "'trian' is no subcommand; did you mean train?"),
    (("frobnicate",), 2, "Expected one of check"),
    (("--frobnicate",), 2, "'--frobnicate' is no option"),
    (("run",), 2, "inputs is required"),
    (("run", "good.yaml"), 2, "--run-dir is required"),
    (("train", "good.yaml"), 2, "--run-dir is required"),
    (("run", "good.yaml", "--run-dir", "new", "--steps", "0"), 2, "--steps: is 0, expected at least 1"),
    (("run", "good.yaml", "--run-dir", "new", "--nproc", "x"), 2, "--nproc"),
    (("run", "good.yaml", "--run-dir", "new", "--nproc", "3", "parallel.ulysses_parallel_size=2"), 2, "--nproc: "),
    (("train", "good.yaml", "--run-dir", "new", "--nproc", "3", "parallel.ulysses_parallel_size=2"), 2, "--nproc: "),
    (("run", "good.yaml", "--run-dir", "new", "--frobnicate"), 2, "--frobnicate"),
    (("run", "good.yaml", "--run-dir", "new", "--train.steps", "5"), 2, "keys are written without dashes: train.steps=5"),
    (("check", "good.yaml", "--sp.size=2"), 2, "of other systems is parallel.context_parallel_size"),
    (("run", "good.yaml", "--run-dir", "new", "data.train=broken.jsonl"), 2, "broken.jsonl:2"),
    (("run", "good.yaml", "--run-dir", "new", "rollout.reward=worker"), 2, "leaves rewards to workers of your own"),
    (("run", "good.yaml", "--run-dir", "new", "seeed=1"), 2, "did you mean seed?"),
    (("run", "good.yaml", "--dry-run", "seeed=1"), 2, "did you mean seed?"),
    (("train", "good.yaml", "--run-dir", "new", "--rollouts", "nowhere.jsonl"), 2, "nowhere.jsonl"),
    (("train", "good.yaml", "--run-dir", "new", "--rollouts", "good.jsonl"), 2, "good.jsonl:1"),
    (("train", "good.yaml", "--run-dir", "new", "--rollouts", "a", "--prime-rl", "b"), 2, "--prime-rl"),
    (("train", "good.yaml", "--run-dir", "new", "--rollouts", "a", "algorithm.task=sft", "data.sft=x"), 2,
     "--rollouts: algorithm.task sft trains on data.sft"),
    (("rollout", "good.yaml"), 2, "no trainer named; give --run-dir DIR"),
    (("rollout", "good.yaml", "--server", "tgi"), 2, 'rollout.server: is "tgi", expected one of embedded'),
    (("check", "good.yaml", "--memory", "80parsecs"), 2, '--memory: is "80parsecs"'),
    (("check", "good.yaml", "--rollouts", "nowhere.jsonl"), 2, "--rollouts: "),
    (("keygen",), 2, "--out is required"),
    (("keygen", "--out", "keys", "--name", "../x"), 2, "expected a plain file name"),
    (("logprobs", "--model", "model"), 2, "--input is required"),
    (("generate", "--input", "good.jsonl"), 2, "--model is required"),
    (("generate", "--model", "run", "--prompt", "x"), 2, "the directory of a run; its model is run/checkpoint-final"),
    (("eval", "run", "good.jsonl"), 2, "the model is run, the directory of a run"),
    (("eval", "run/checkpoints/step-000001", "good.jsonl"), 2, "a checkpoint; `ringside export` makes"),
    (("logprobs", "--model", "nowhere", "--input", "good.jsonl", "--output", "o"), 2, "nowhere, which does not exist"),
    (("export", "nowhere"), 2, "is required"),
    (("completion", "fish"), 2, "fish"),
    (("completion",), 2, "shell is required"),
    (("init", "--yes"), 2, "--model is missing"),
    (("doctor", "seeed=1"), 2, "did you mean seed?"),
]


class WrongUses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        config = {**quickstart_task.model_config(), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
                  "head_dim": 8, "max_position_embeddings": 64}
        tokenizer = json.dumps(quickstart_task.tokenizer_json())
        for name, text in (("model", json.dumps(config)), ("gpt2", json.dumps({**config, "model_type": "gpt2"})),
                           ("broken", "{"), ("bare", json.dumps(config))):
            (cls.folder / name).mkdir()
            (cls.folder / name / "config.json").write_text(text)
            write_weights(cls.folder / name / "model.safetensors", shapes_of(config))
            if name != "bare":
                (cls.folder / name / "tokenizer.json").write_text(tokenizer)
        for name in ("run/checkpoint-final/config.json", "run/checkpoints/step-000001/manifest.json"):
            (cls.folder / name).parent.mkdir(parents=True)
            (cls.folder / name).write_text("{}")
        good = '{"prompt": "312>", "answer": "123"}\n'
        for name, text in (("good", good), ("broken", good + "{\n"), ("noprompt", '{"text": "x"}\n'),
                           ("messages", '{"prompt": [{"role": "user", "content": "1"}], "answer": "1"}\n')):
            (cls.folder / f"{name}.jsonl").write_text(text)
        (cls.folder / "good.yaml").write_text(
            "model: {path: model}\ndata: {train: good.jsonl}\nrollout: {prompts_per_step: 2, group_size: 2,\n"
            "  max_prompt_tokens: 16, max_completion_tokens: 4}\ntrain: {steps: 1, threads: 1}\n")

    def run_one(self, words, log: pathlib.Path) -> tuple[int, str]:
        done = prestarted.run([str(RINGSIDE), *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=60, check=False, stdin=subprocess.DEVNULL, preload=str(RECORDER),
                              env={**os.environ, "SPAWN_LOG": str(log)})
        return done.returncode, done.stdout.decode(errors="replace")

    def judge(self, rows: list[tuple[tuple, int, str]]):
        before = sorted(path.name for path in self.folder.iterdir())
        with tempfile.TemporaryDirectory() as logs, concurrent.futures.ThreadPoolExecutor(2) as pool:
            log_of = [pathlib.Path(logs) / str(i) for i in range(len(rows))]
            results = list(pool.map(lambda row, log: self.run_one(row[0], log), rows, log_of))
            for (words, code, expected), log, (got, text) in zip(rows, log_of, results):
                with self.subTest(words=words):
                    self.assertEqual(got, code, text)
                    self.assertIn(expected, text)
                    for unwanted in LIBRARY_TEXT:
                        self.assertNotIn(unwanted, text)
                    self.assertFalse(log.exists(), "a process was started")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before)

    def test_the_table_is_long_enough_and_the_recorder_sees_processes(self):
        self.assertGreaterEqual(len(VALUES) + len(RECIPES) + len(COMMANDS), 80)
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            code, text = self.run_one(("run", "good.yaml", "--dry-run"), log)
            self.assertEqual(code, 0, text)
            self.assertIn("execve", log.read_text())

    def test_the_good_recipe_is_accepted(self):
        with tempfile.TemporaryDirectory() as folder:
            code, text = self.run_one(("check", "good.yaml"), pathlib.Path(folder) / "log")
            self.assertEqual(code, 0, text)

    def test_wrong_values(self):
        words = [[row] if row.startswith(("rollout.reward=", "train.steps = ")) else row.split(" ") for row, _ in VALUES]
        words = [row[0].split(" ") if row[0].startswith("train.steps = ") else row for row in words]
        self.judge([(("check", "good.yaml", *row), 2, expected) for row, (_, expected) in zip(words, VALUES)])

    def test_wrong_recipes(self):
        for i, (text, expected) in enumerate(RECIPES):
            (self.folder / f"{i}").mkdir()
            (self.folder / f"{i}" / "bad.yaml").write_text(text)
        self.judge([(("check", "good.yaml", f"{i}/bad.yaml"), 2, expected) for i, (_, expected) in enumerate(RECIPES)])

    def test_wrong_commands(self):
        self.judge(COMMANDS)


if __name__ == "__main__":
    unittest.main()
