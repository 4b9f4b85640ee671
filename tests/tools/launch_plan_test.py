"""What the launchers derive from a recipe, and how two runs are compared.

Guards: a launcher that starts another number of processes than `ringside run`; new keys for a run that has some; a
comparison that calls different runs equal.

Usage: launch_plan_test.py RINGSIDE. Standard library only.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "tools" / "launch"
os.environ["RINGSIDE"] = sys.argv.pop(1)
sys.path.insert(0, str(LAUNCH))
import launch_plan  # noqa: E402


class LaunchPlan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", self.folder, "--sft", "10",
                        "--train", "10", "--held-out", "5", "--test", "5"], check=True, stdout=subprocess.DEVNULL)

    def sizes(self, recipe: str, *more: str) -> tuple[int, int]:
        data = f"data.sft={self.folder}/sft.jsonl" if recipe == "sft.yaml" else f"data.train={self.folder}/train.jsonl"
        found = launch_plan.sizes_of([str(ROOT / "recipes/quickstart" / recipe), f"model.path={self.folder}/model",
                                      "model.init=random", data, *more])
        return found.ranks, found.workers

    def run_dir(self, name: str, reward: float, weights: bytes, seconds: float = 1.0) -> pathlib.Path:
        folder = self.folder / name
        (folder / "checkpoint-final").mkdir(parents=True)
        (folder / "checkpoint-final/model.safetensors").write_bytes(weights)
        lines = [{"step": 1, "reward": 0.5, "step_time": seconds}, {"step": 2, "reward": reward, "sampling/x": seconds}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def compare(self, *words) -> tuple[int, str]:
        done = subprocess.run([sys.executable, LAUNCH / "compare_runs.py", *words], stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout

    def test_numbers_of_ranks_and_workers_are_the_recipes(self):
        self.assertEqual(self.sizes("grpo.yaml"), (2, 1))
        self.assertEqual(self.sizes("grpo.yaml", "parallel.data_parallel_replicate_size=3", "rollout.num_workers=4"), (6, 4))
        self.assertEqual(self.sizes("sft.yaml", "parallel.ulysses_parallel_size=1"), (1, 0))

    def test_a_recipe_with_mistakes_ends_the_launcher_as_it_ends_run(self):
        with self.assertRaises(SystemExit) as ended:
            self.sizes("grpo.yaml", "parallel.ulysses_parallel_size=1000")
        self.assertEqual(ended.exception.code, 2)

    def test_keys_are_made_once_and_kept_from_others(self):
        keys = launch_plan.make_keys(self.folder / "run")
        secret = (keys / "trainer.key").read_text()
        self.assertEqual((keys / "allowed").read_text(), (keys / "worker.pub").read_text())
        self.assertEqual((keys / "trainer.key").stat().st_mode & 0o077, 0)
        launch_plan.make_keys(self.folder / "run")
        self.assertEqual((keys / "trainer.key").read_text(), secret)

    def test_a_run_directory_must_be_named_once(self):
        self.assertEqual(launch_plan.split_run_dir(["a.yaml", "--run-dir", "/r", "k=1"]), (["a.yaml", "k=1"], pathlib.Path("/r")))
        for words in (["a.yaml"], ["a.yaml", "--run-dir"]):
            self.assertRaises(SystemExit, launch_plan.split_run_dir, words)

    def test_runs_are_equal_whatever_their_times_and_different_otherwise(self):
        first = self.run_dir("first", 0.5, b"w")
        self.assertEqual(self.compare("--workers-differ", first, self.run_dir("same", 0.5, b"w", seconds=2.0))[0], 0)
        for name, reward, weights, part in (("reward", 0.5000001, b"w", "step 2: reward is 0.5 and 0.5000001"),
                                            ("weights", 0.5, b"v", "the final weights differ")):
            code, text = self.compare(first, self.run_dir(name, reward, weights))
            self.assertEqual(code, 1)
            self.assertIn(part, text)
        self.assertEqual(self.compare(first, self.folder / "same")[0], 1)  # sampling/x counts unless --workers-differ


if __name__ == "__main__":
    unittest.main()
