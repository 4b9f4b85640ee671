"""A trainer killed again and again has the history of one that never was.

A synchronous, on-policy run of one worker is a function of its configuration: prompts, samples and updates depend on seeds and
weights alone. So the trainer is killed with SIGKILL at random moments and started again by the same command, and every
step's figures - those of steps trained a second time included - must be those of an undisturbed run.

Usage: restart_history_test.py RINGSIDE [SEED]. Standard library only.
"""

import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
SEED = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 1
STEPS, KILLS, DEADLINE_S = 16, 4, 120
# What must be the same; times, counters since the trainer's start and byte counts need not be.
FIGURES = ("loss", "reward", "grad_norm", "entropy", "num_tokens", "completions/mean_length", "staleness/max",
           "sampling/sampling_logp_difference/max")


class RestartHistory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", self.folder / "data", "--sft", "100",
                        "--train", "100", "--held-out", "10", "--test", "10"], check=True, stdout=subprocess.DEVNULL)
        self.processes = []
        self.addCleanup(self.stop_all)

    def stop_all(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, role: str, run_dir: pathlib.Path) -> subprocess.Popen:
        words = [RINGSIDE, role, ROOT / "recipes/quickstart/grpo.yaml"]
        words += ["--run-dir", run_dir] if role == "train" else ["--run-dir", run_dir, "--worker-id", "w"]
        if role == "train":
            words += ["--steps", STEPS]
        # Rewards that differ from the first step on, without a model that has learnt anything.
        words += ["model.init=random", f"model.path={self.folder / 'data/model'}", "rollout.reward=regex",
                  "rollout.reward_options.regex=.*[0-4]",
                  f"data.train={self.folder / 'data/train.jsonl'}", "rollout.prompts_per_step=4", "rollout.group_size=16",
                  "parallel.ulysses_parallel_size=1", "checkpoint.every=3", "optimizer.learning_rate=2e-4",
                  "optimizer.warmup_steps=0", "bridge.worker_timeout_s=3", "bridge.heartbeat_s=0.5", "eval.every=0",
                  f"bridge.rollout_address=ipc://{run_dir}/rollouts", f"bridge.weights_address=ipc://{run_dir}/weights"]
        log = open(self.folder / f"{run_dir.name}-{role}.log", "a")
        self.addCleanup(log.close)
        process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(path.read_text()[-4000:] for path in sorted(self.folder.glob("*.log")))

    def metrics(self, run_dir: pathlib.Path) -> list[dict]:
        path = run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def history(self, run_dir: pathlib.Path, kill_at: list[int], rng: random.Random) -> list[dict]:
        run_dir.mkdir()
        deadline = time.monotonic() + DEADLINE_S
        trainer, worker = self.start("train", run_dir), self.start("rollout", run_dir)
        for step in kill_at:
            while len(self.metrics(run_dir)) < step:
                self.assertLess(time.monotonic(), deadline, self.logs())
                self.assertIsNone(trainer.poll(), self.logs())
                time.sleep(0.01)
            time.sleep(rng.random() * 0.5)  # anywhere within the steps that follow
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
            trainer = self.start("train", run_dir)
        self.assertEqual(trainer.wait(max(1, deadline - time.monotonic())), 0, self.logs())
        while worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(worker.poll(), 0, self.logs())
        return self.metrics(run_dir)

    def test_a_killed_trainer_repeats_itself(self):
        rng = random.Random(SEED)
        kills = sorted(rng.sample(range(1, STEPS - 2), KILLS))
        undisturbed = self.history(self.folder / "whole", [], rng)
        killed = self.history(self.folder / "killed", kills, rng)
        self.assertEqual([line["step"] for line in undisturbed], list(range(1, STEPS + 1)))
        self.assertEqual([line["step"] for line in killed], list(range(1, STEPS + 1)))
        self.assertGreater(len({line["grad_norm"] for line in undisturbed} - {0}), STEPS // 4)  # something was learnt from
        for expected, got in zip(undisturbed, killed):
            for name in FIGURES:
                self.assertAlmostEqual(got[name], expected[name], delta=1e-6 + 1e-4 * abs(expected[name]),
                                       msg=f"seed {SEED}, kills after {kills}, step {expected['step']}, {name}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
