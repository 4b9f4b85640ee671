"""Workers and files that could end a run, against the real executable.

Guards that no rollout ends a trainer: token ids outside the vocabulary, a worker of other sampling settings, the example
worker, a recorded file. Each is refused by name, and the run beside it finishes.

Usage: hostile_worker_test.py RINGSIDE, by the Python of .env/oracle (it needs the bridge's client).
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON_DIR = ROOT / "rollout_bridge" / "python"
sys.path.insert(0, str(PYTHON_DIR))

from ringside_bridge import Client, Ended, Failed, Granted, Rollout, WeightsReady  # noqa: E402

RINGSIDE = sys.argv.pop(1)
DEADLINE_S = 60
VOCABULARY = 48  # of quickstart_task's model


class HostileWorker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.TemporaryDirectory()
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", cls.data.name, "--sft", "10",
                        "--train", "100", "--held-out", "10", "--test", "10"], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.data.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "run"

    def words(self, *more: str) -> list[str]:
        return ["model.init=random", f"model.path={self.data.name}/model", f"data.train={self.data.name}/train.jsonl",
                "rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.reward=regex",
                "rollout.reward_options.regex=.*[0-4]", "parallel.ulysses_parallel_size=1", "optimizer.warmup_steps=0",
                "bridge.worker_timeout_s=5", "eval.every=0", "log.progress=lines", *more]

    def start(self, role: str, *words: str) -> subprocess.Popen:
        log = open(self.folder / f"{role}.log", "a")
        self.addCleanup(log.close)
        process = subprocess.Popen([RINGSIDE, role, ROOT / "recipes/quickstart/grpo.yaml", "--run-dir", self.run_dir,
                                    *self.words(*words)], stdout=log, stderr=log)
        self.addCleanup(lambda: (process.kill(), process.wait()))
        return process

    def text(self, role: str = "train") -> str:
        path = self.folder / f"{role}.log"
        return path.read_text() if path.exists() else ""

    def metrics(self) -> list[dict]:
        path = self.run_dir / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def address(self, trainer: subprocess.Popen) -> str:
        path = self.run_dir / "bridge/endpoint.json"
        deadline = time.monotonic() + DEADLINE_S
        while not path.exists():
            self.assertIsNone(trainer.poll(), self.text())
            self.assertLess(time.monotonic(), deadline, self.text())
            time.sleep(0.02)
        return json.loads(path.read_text())["rollout_address"]

    def finishes(self, trainer: subprocess.Popen, steps: int):
        """With a good worker the run goes to its end."""
        worker = self.start("rollout", "--worker-id=good")
        self.assertEqual(trainer.wait(DEADLINE_S), 0, self.text())
        self.assertEqual(len(self.metrics()), steps, self.text())
        self.assertEqual(worker.wait(DEADLINE_S), 0, self.text("rollout"))

    def test_ids_outside_the_vocabulary(self):
        trainer = self.start("train", "--steps=2")
        version = -1
        with Client(self.address(trainer), "poison", capacity_samples=16) as client:
            while True:
                event = client.poll(timeout=20)
                if isinstance(event, WeightsReady):
                    version = event.version
                    client.commit(event, event.tensors)
                elif isinstance(event, Granted):
                    with contextlib.suppress(ConnectionError):  # the end comes as an event
                        for group, sample in ((g, s) for g in event.groups for s in g.sample_indices):
                            client.send(Rollout(
                                f"p-{group.group_id}-{sample}-{group.attempt}", group.group_id, group.group_size, sample,
                                [3], [VOCABULARY], [-1.0], [(version, 0, 1)], attempt=group.attempt, rewards={"regex": 1.0}))
                elif isinstance(event, (Ended, Failed)) or event is None:
                    break
        self.assertIsInstance(event, Failed, self.text())
        self.assertEqual(event.reason, "vocabulary")
        self.assertIn(f"completion_ids[0] = {VOCABULARY} is outside the model's vocabulary of {VOCABULARY}", event.detail)
        self.finishes(trainer, 2)
        self.assertEqual(self.metrics()[-1]["bridge/rejected/vocabulary"], 17)  # 16 samples, and the ERROR

    def test_a_worker_of_other_settings(self):
        trainer = self.start("train", "--steps=2")
        self.address(trainer)
        worker = self.start("rollout", "--worker-id=cut", "rollout.top_p=0.9", "seed=7")
        self.assertEqual(worker.wait(DEADLINE_S), 1, self.text("rollout"))
        self.assertIn("top_p is 0.9, the trainer's is 1; seed is 7, the trainer's is 1", self.text("rollout"))
        self.finishes(trainer, 2)

    def example(self, trainer: subprocess.Popen) -> str:
        done = subprocess.run([sys.executable, PYTHON_DIR / "examples/random_worker.py", self.address(trainer), "ex"],
                              env=os.environ | {"PYTHONPATH": str(PYTHON_DIR)}, capture_output=True, text=True,
                              timeout=DEADLINE_S)
        return done.stdout

    def test_the_example_worker_where_it_does_not_belong(self):
        trainer = self.start("train", "--steps=2")
        self.assertIn("Failed", self.example(trainer))
        self.finishes(trainer, 2)

    def test_the_example_worker_where_it_belongs(self):
        trainer = self.start("train", "--steps=2", "rollout.reward=worker", "rollout.reward_options.regex=", "data.train=")
        self.assertIn("Ended", self.example(trainer))
        self.assertEqual(trainer.wait(DEADLINE_S), 0, self.text())
        self.assertEqual(len(self.metrics()), 2)
        self.assertIn("rewards/even/mean", self.metrics()[-1])

    def train_on(self, path: pathlib.Path, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([RINGSIDE, "train", ROOT / "recipes/quickstart/grpo.yaml", "--run-dir", self.folder / "again",
                               "--rollouts", path, *self.words(*words)], capture_output=True, text=True, timeout=DEADLINE_S)

    def test_a_recorded_file_is_held_to_the_model(self):
        path = self.folder / "recorded.jsonl"
        line = {"group_id": 0, "prompt_ids": [3], "completion_ids": [4], "logprobs": [-1.0], "reward": 1}
        for change, sentence in (({"completion_ids": [VOCABULARY]}, "vocabulary of 48"), ({"reward": 1e308}, "1e+308"),
                                 ({"prompt_ids": [3] * 256}, "the model has 256 positions")):
            path.write_text("".join(json.dumps(row) + "\n" for row in (line, line | change)))
            done = self.train_on(path, "rollout.group_size=2", "rollout.prompts_per_step=1", "--steps=1")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"{path}:2: ", done.stderr)
            self.assertIn(sentence, done.stderr)
        path.write_text("".join(json.dumps(row) + "\n" for row in (line, line | {"reward": 0})))
        done = self.train_on(path, "rollout.group_size=2", "rollout.prompts_per_step=1", "--steps=1")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_zero_reward_is_said_and_the_log_is_trained_on_again(self):
        never = "rollout.reward_options.regex=never"
        trainer, worker = self.start("train", "--steps=6", "log.rollouts=true", never), self.start("rollout", never)
        self.assertEqual(trainer.wait(DEADLINE_S), 0, self.text())
        worker.wait(DEADLINE_S)
        self.assertIn("all rewards are 0 for 5 steps", self.text())
        self.assertEqual([step["alarm/zero_reward"] for step in self.metrics()], [0, 0, 0, 0, 1, 1])
        done = self.train_on(self.run_dir / "rollouts.jsonl", "--steps=6", never)
        self.assertEqual(done.returncode, 0, done.stderr)
        again = [json.loads(line) for line in (self.folder / "again/metrics.jsonl").read_text().splitlines()]
        for name in ("num_tokens", "completions/mean_length", "reward", "entropy"):
            self.assertEqual([step[name] for step in again], [step[name] for step in self.metrics()], name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
