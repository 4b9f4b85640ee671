"""What `ringside run --dry-run` and `ringside train --dry-run` do with a recipe.

Guards: a recipe that only fails on the machine it was written for; a dry run that leaves out the recipe's layout,
algorithm or adapters; one that needs weights, data, a GPU or a server; one that trains nothing; one that touches files
outside its own folder.

Usage: dry_run_test.py RINGSIDE. Standard library only.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
import quickstart_task  # noqa: E402

ABSENT = "model: {path: /nowhere/Nobodys-8B, dtype: bfloat16, device: cuda}\ndata: {train: /nowhere/train.jsonl}\n"


class DryRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.recipe = self.folder / "recipe.yaml"
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()

    def ringside(self, *words, command: str = "run") -> tuple[int, str]:
        start = time.monotonic()
        done = prestarted.run([RINGSIDE, command, *map(str, words), "--dry-run"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=100, cwd=self.folder, check=False,
                              env={**os.environ, "TMPDIR": str(self.temporary)})
        text = done.stdout.decode(errors="replace")
        print(f"{self.id().split('.')[-1]}: {time.monotonic() - start:.1f} s", flush=True)
        return done.returncode, text

    def passed(self, recipe: str, *words, command: str = "run") -> str:
        """The output of a dry run that took two steps, moved the weights and removed its folder."""
        self.recipe.write_text(recipe)
        code, text = self.ringside(self.recipe, *words, command=command)
        self.assertEqual(code, 0, text)
        found = re.search(r"dry run passed: 2 steps in .* grad_norm ([0-9.e+-]+)", text)
        self.assertIsNotNone(found, text)
        self.assertGreater(float(found.group(1)), 0, text)
        self.assertEqual(list(self.temporary.iterdir()), [], text)
        self.assertEqual({path.name for path in self.folder.iterdir()} - {"recipe.yaml", "tmp", "model", "data"}, set())
        return text

    def test_a_recipe_without_model_data_and_gpu_keeps_algorithm_adapters_and_sharding(self):
        text = self.passed(ABSENT + "algorithm: {preset: dapo}\nlora: {rank: 32, base: nf4}\n"
                           "rollout: {prompts_per_step: 512, max_completion_tokens: 20480, reward: math_answer, server: vllm}\n"
                           "parallel: {data_parallel_shard_size: 2, ulysses_parallel_size: 2, zero_stage: 2}\n"
                           "train: {steps: 1000, num_mini_batches: 16}\n")
        for part in ("model: a made-up Qwen3, because /nowhere/Nobodys-8B is not there", "made up, one token a byte",
                     "ranks: 4, as in the recipe", "train.steps: 1000 -> 2", "rollout.server: vllm -> embedded",
                     "replicas 1 x shards 2 x ring 1 x ulysses 2", "lora.rank: 32 -> 4", "step 2/2"):
            self.assertIn(part, text)
        self.assertNotRegex(text, r"lora\.base:|zero_stage:|clip_high:|model\.dtype:")

    def test_a_large_mesh_is_reduced_to_two_ranks_an_axis_and_says_so(self):
        text = self.passed(ABSENT + "parallel: {ringattn_parallel_size: 8, ulysses_parallel_size: 8}\n")
        self.assertIn("ranks: 64 -> 4", text)
        self.assertIn("parallel.ringattn_parallel_size: 8 -> 2", text)
        self.assertIn("ring 2 x ulysses 2", text)

    def test_a_critic_a_reference_and_an_evaluation_are_part_of_it(self):
        text = self.passed(ABSENT + "algorithm: {advantage: {estimator: gae, std: none}, kl_coef: 0.1}\n"
                           "rollout: {reward: 'exact_match, http * 0.5'}\neval: {every: 50}\n", "data.eval=/nowhere/eval.jsonl")
        self.assertIn("rollout.reward: exact_match, http * 0.5 -> exact_match, length", text)
        self.assertRegex(text, "evaluation|eval_reward|eval ")

    def test_held_out_sets_by_name_are_made_up_and_evaluated(self):
        text = self.passed(ABSENT + "eval: {every: 1, sets: {hard: /nowhere/hard.jsonl, easy: [/nowhere/easy.jsonl]}}\n"
                           "checkpoint: {keep_best: true, best_metric: eval/easy/reward}\n")
        self.assertRegex(text, "evaluation.*hard/reward .*easy/reward ")
        self.assertIn("best evaluation: eval/easy/reward", text)

    def test_the_recipes_own_model_tokenizer_and_data_are_used_where_they_are_there(self):
        model = self.folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(quickstart_task.model_config()))
        (model / "tokenizer.json").write_text(json.dumps(quickstart_task.tokenizer_json()))
        (self.folder / "data").mkdir()
        (self.folder / "data" / "train.jsonl").write_text('{"prompt": "31>", "answer": "13"}\n' * 100)
        text = self.passed("model: {path: model}\ndata: {train: data/train.jsonl}\n")
        for part in ("layers 4 -> 2", "vocabulary 48", "tokenizer: the recipe's", "query heads 4, key-value heads 2"):
            self.assertIn(part, text)

    def test_supervised_fine_tuning_and_chat_messages(self):
        text = self.passed("model: {path: Qwen3-0.6B}\nalgorithm: {task: sft}\n"
                           "data: {sft: absent.jsonl, chat_template: chatml}\ntrain: {epochs: 3}\n", command="train")
        self.assertIn("train.epochs: 3 -> 0", text)

    def test_advantages_that_come_with_rollouts_are_made_up(self):
        text = self.passed("model: {path: absent}\nalgorithm: {advantage: {estimator: given}}\nrollout: {group_size: 1}\n",
                           command="train")
        self.assertIn("rollouts: made up", text)

    def test_mistakes_of_the_recipe_end_it_before_anything_starts(self):
        self.recipe.write_text("rollout: {group_sise: 4}\n")
        code, text = self.ringside(self.recipe)
        self.assertEqual(code, 2, text)
        self.assertIn("recipe.yaml:1:11: rollout.group_sise: unknown key; did you mean rollout.group_size?", text)
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_stages_of_tensor_ranks_train_and_publish_to_a_worker(self):
        text = self.passed(ABSENT + "parallel: {pipeline_parallel_size: 2, tensor_parallel_size: 2}\n")
        self.assertIn("on 4 ranks (pipeline 2 x replicas 1 x shards 1 x ring 1 x ulysses 1 x tensor 2)", text)

    def test_without_dry_run_a_run_directory_is_required(self):
        self.recipe.write_text(ABSENT)
        for command in ("run", "train"):
            done = prestarted.run([RINGSIDE, command, self.recipe], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=60, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(b"--run-dir is required", done.stdout)


if __name__ == "__main__":
    unittest.main()
