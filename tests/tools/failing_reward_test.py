"""A reward that begins to fail while a run trains.

Guards: a run that trains on nothing and ends with exit code 0; a curve of rewards that are 0 because there are none; an
end without a checkpoint or a reason; an evaluation that ends a run; a restarted worker whose function's file is gone.

Usage: failing_reward_test.py RINGSIDE. Standard library only.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
DEADLINE_S = 60


class FailingReward(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.data = pathlib.Path(folder.name)
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", cls.data, "--sft", "8", "--train", "64",
                        "--held-out", "8", "--test", "8"], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "run"
        self.function = self.folder / "rewards.py"

    def start(self, steps: int, *words: str) -> subprocess.Popen:
        self.log = open(self.folder / "log.txt", "a+")
        self.addCleanup(self.log.close)
        command = [RINGSIDE, "run", ROOT / "recipes/quickstart/grpo.yaml", "--run-dir", self.run_dir, "--steps", steps,
                   "model.init=random", f"model.path={self.data / 'model'}", f"data.train={self.data / 'train.jsonl'}",
                   "rollout.prompts_per_step=2", "rollout.group_size=4", "parallel.ulysses_parallel_size=1", "train.threads=1",
                   f"rollout.reward=python({self.function}:score)", "eval.every=0", *words]
        run = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=self.log)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        return run

    def text(self) -> str:
        return (self.folder / "log.txt").read_text()

    def metrics(self) -> list[dict]:
        path = self.run_dir / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def test_a_reward_that_fails_saves_and_ends_the_run_which_goes_on_later(self):
        self.function.write_text("calls = 0\n"
                                 "def score(completions):\n"
                                 "    global calls\n"
                                 "    calls += 1\n"
                                 "    if calls > 2: raise RuntimeError('the grader is away')\n"
                                 "    return [float(len(c)) for c in completions]\n")
        run = self.start(9, "rollout.max_steps_without_score=2")
        self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
        steps = self.metrics()
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4], self.text())
        self.assertEqual(["reward" in step for step in steps], [True, True, False, False])
        self.assertEqual([step["alarm/no_score"] for step in steps], [0, 0, 1, 1])
        self.assertEqual(steps[3]["response/aborted_ratio"], 1)
        self.assertNotIn("grad_norm", steps[3])  # no optimizer step: it would only decay the weights
        said = (self.run_dir / "warnings.log").read_text()
        self.assertIn("no sample of the last step has a score", said)
        self.assertIn("RuntimeError: the grader is away", said)
        self.assertIn("rollout.max_steps_without_score = 2", self.text())
        self.assertTrue((self.run_dir / "checkpoint-000004").exists() or list(self.run_dir.glob("checkpoints/step-000004")),
                        sorted(self.run_dir.iterdir()))
        self.assertFalse((self.run_dir / "checkpoint-final").exists())
        # Mended, the same command goes on after that checkpoint.
        self.function.write_text("def score(completions):\n    return [float(len(c)) for c in completions]\n")
        self.assertEqual(self.start(6, "rollout.max_steps_without_score=2").wait(DEADLINE_S), 0, self.text())
        self.assertEqual([step["step"] for step in self.metrics()], [1, 2, 3, 4, 5, 6])
        self.assertIn("reward", self.metrics()[5])

    def test_an_evaluation_whose_reward_fails_is_a_warning(self):
        held_out = self.folder / "held_out.jsonl"
        lines = (self.data / "held_out.jsonl").read_text().splitlines()
        held_out.write_text("".join(json.dumps({**json.loads(line), "held_out": True}) + "\n" for line in lines))
        self.function.write_text("calls = 0\n"
                                 "def score(completions, held_out=None):\n"
                                 "    global calls\n"
                                 "    calls += 1\n"
                                 "    if held_out and calls > 1: raise ValueError('one bad row')\n"
                                 "    return [float(len(c)) for c in completions]\n")
        run = self.start(3, f"data.eval={held_out}", "eval.every=1", "eval.before_training=false")
        self.assertEqual(run.wait(DEADLINE_S), 0, self.text())
        self.assertEqual(["eval_reward" in step for step in self.metrics()], [True, False, False], self.metrics())
        self.assertIn("one bad row", (self.run_dir / "warnings.log").read_text())

    def test_a_restarted_worker_without_the_function_ends_the_run(self):
        self.function.write_text("def score(completions):\n    return [float(len(c)) for c in completions]\n")
        run = self.start(100000)
        deadline = time.monotonic() + DEADLINE_S
        while len(self.metrics()) < 2:
            self.assertLess(time.monotonic(), deadline, self.text())
            time.sleep(0.05)
        self.function.unlink()
        os.kill(self.worker(), signal.SIGKILL)
        self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
        self.assertIn("No such file", (self.run_dir / "warnings.log").read_text())

    def worker(self) -> int:
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().decode().split("\0")
                except OSError:
                    continue
                if str(self.run_dir) in words and words[1] == "rollout":
                    return int(entry.name)
        self.fail(f"no worker\n{self.text()}")


if __name__ == "__main__":
    unittest.main()
