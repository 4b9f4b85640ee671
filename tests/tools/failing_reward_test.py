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
import time
import unittest

import quickstart_case

RINGSIDE = sys.argv.pop(1)
DEADLINE_S = 60


class FailingReward(quickstart_case.QuickstartCase):
    def setUp(self):
        super().setUp()
        self.function = self.folder / "rewards.py"

    def start(self, steps: int, *words: str) -> subprocess.Popen:
        self.log = open(self.folder / "log.txt", "a+")
        self.addCleanup(self.log.close)
        command = [RINGSIDE, "run", "--run-dir", self.run_dir, "--steps", steps,
                   *self.recipe(f"rollout.reward=python({self.function}:score)", *words)]
        run = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=self.log)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        return run

    def text(self) -> str:
        return (self.folder / "log.txt").read_text()

    def metrics(self) -> list[dict]:
        return self.lines("metrics.jsonl")

    def wait_for_step(self, step: int):
        deadline = time.monotonic() + DEADLINE_S
        while len(self.metrics()) < step:
            self.assertLess(time.monotonic(), deadline, self.text())
            time.sleep(0.05)

    def test_a_reward_that_fails_saves_and_ends_the_run_which_goes_on_later(self):
        away = self.folder / "away"
        self.function.write_text("import os\n"
                                 "def score(completions):\n"
                                 f"    if os.path.exists({str(away)!r}): raise RuntimeError('the grader is away')\n"
                                 "    return [float(len(c)) for c in completions]\n")
        run = self.start(100000, "rollout.max_steps_without_score=2")
        self.wait_for_step(2)
        away.touch()
        self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
        steps = self.metrics()
        last = steps[-1]["step"]
        self.assertEqual(["reward" in step for step in steps[-3:]], [True, False, False], self.text())
        self.assertEqual([step["alarm/no_score"] for step in steps[-3:]], [0, 1, 1])
        self.assertEqual(steps[-1]["response/aborted_ratio"], 1)
        self.assertNotIn("grad_norm", steps[-1])  # no optimizer step: it would only decay the weights
        said = (self.run_dir / "warnings.log").read_text()
        self.assertIn("no sample of the last step has a score", said)
        self.assertIn("RuntimeError: the grader is away", said)
        self.assertIn("rollout.max_steps_without_score = 2", self.text())
        self.assertTrue((self.run_dir / f"checkpoints/step-{last:06d}").exists(), self.text())
        self.assertFalse((self.run_dir / "checkpoint-final").exists())
        # Mended, the same command goes on after that checkpoint.
        away.unlink()
        again = self.start(last + 2, "rollout.max_steps_without_score=2")
        self.assertEqual(again.wait(DEADLINE_S), 0, self.text())
        self.assertEqual([step["step"] for step in self.metrics()], list(range(1, last + 3)))
        self.assertIn("reward", self.metrics()[-1])

    def test_a_run_shorter_than_the_limit_fails_when_no_step_had_a_score(self):
        # It works when it is tried before the run, with the answers as completions.
        self.function.write_text("def score(completions, answers):\n"
                                 "    if list(completions) != list(answers): raise RuntimeError('the grader is away')\n"
                                 "    return [1.0] * len(completions)\n")
        run = self.start(1)
        self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
        self.assertIn("no sample of any step has a score", self.text())
        self.assertIn("the grader is away", self.text())
        self.assertFalse((self.run_dir / "checkpoint-final").exists())

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
        self.wait_for_step(2)
        self.function.unlink()
        os.kill(self.worker(), signal.SIGKILL)
        self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
        self.assertIn("No such file", self.text())

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
