"""A live run under the faults a user meets: a killed worker, a killed trainer rank, Ctrl-C, and a restart.

Guards the promises of `ringside run`: a lost worker is reported and replaced and its groups are sampled
again; a lost rank stops everything within 30 s and is named; Ctrl-C leaves no process; the same command
goes on from the last checkpoint; and every rollout's log-probs are those of the weights it names.

Usage: live_run_test.py RINGSIDE. Standard library only.
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
DEADLINE_S = 30


def processes_of(run_dir: pathlib.Path) -> dict[int, list[str]]:
    """Command lines of all live processes that name the run directory, by pid."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")[:-1]
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if str(run_dir) in words and state != "Z":
                found[int(entry.name)] = words
    return found


def rank_of(pid: int) -> str | None:
    environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next((word[5:] for word in environment if word.startswith("RANK=")), None)


class LiveRun(unittest.TestCase):
    """Each test starts its own run of a tiny model on two sequence-parallel ranks and one worker."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "run"
        subprocess.run([sys.executable, ROOT / "tools" / "quickstart_task.py", "--out", self.folder / "data",
                        "--sft", "2000", "--train", "200", "--held-out", "20", "--test", "20"],
                       check=True, stdout=subprocess.DEVNULL)

    def warm_up(self) -> str:
        """A model that solves some prompts: with rewards that differ, every step changes the weights, and a rollout
        of one version no longer fits the weights of another. Returns the override that starts from it."""
        subprocess.run([RINGSIDE, "train", ROOT / "recipes/quickstart/sft.yaml", "--run-dir", self.folder / "sft",
                        "--steps", "60", f"model.path={self.folder / 'data/model'}",
                        f"data.sft={self.folder / 'data/sft.jsonl'}"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return f"model.path={self.folder / 'sft/checkpoint-final'}"

    def start(self, steps: int, *words: str) -> subprocess.Popen:
        if not any(word.startswith("model.path=") for word in words):
            words += ("model.init=random", f"model.path={self.folder / 'data/model'}")
        command = [RINGSIDE, "run", ROOT / "recipes/quickstart/grpo.yaml", "--run-dir", self.run_dir,
                   "--steps", str(steps),
                   f"data.train={self.folder / 'data/train.jsonl'}", "rollout.prompts_per_step=4",
                   "rollout.group_size=4", "bridge.worker_timeout_s=2", "bridge.heartbeat_s=0.5",
                   "optimizer.learning_rate=1e-3", "optimizer.warmup_steps=0", *words]
        self.log = open(self.folder / "log.txt", "a+")
        self.addCleanup(self.log.close)
        run = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=self.log)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        return run

    def text(self) -> str:
        return (self.folder / "log.txt").read_text()

    def metrics(self) -> list[dict]:
        path = self.run_dir / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_until(self, condition, what: str, seconds: float = DEADLINE_S):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"not within {seconds} s: {what}\n{self.text()}")
            time.sleep(0.05)

    def wait_for_step(self, step: int):
        self.wait_until(lambda: len(self.metrics()) >= step, f"step {step}")

    def process(self, role: str, rank: str | None = None) -> int:
        for pid, words in processes_of(self.run_dir).items():
            if words[1] == role and (rank is None or rank_of(pid) == rank):
                return pid
        self.fail(f"no process of {role} {rank}\n{self.text()}")

    def assert_nothing_left(self):
        self.wait_until(lambda: not processes_of(self.run_dir), "no process is left", 5)

    def test_rollouts_are_of_the_weights_they_name(self):
        run = self.start(6, self.warm_up(), "rollout.group_size=16")
        self.assertEqual(run.wait(60), 0, self.text())
        steps = self.metrics()
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4, 5, 6])
        for step in steps:
            # The trainer's own log-probs, at the version that each rollout carries.
            self.assertLess(step["sampling/sampling_logp_difference/max"], 1e-4)
            self.assertEqual(step["staleness/max"], 0)
        self.assertTrue((self.run_dir / "checkpoint-final/model.safetensors").exists())
        self.assert_nothing_left()

    def test_stale_rollouts_are_of_older_weights(self):
        run = self.start(6, self.warm_up(), "rollout.group_size=16", "algorithm.max_staleness=2")
        self.assertEqual(run.wait(60), 0, self.text())
        stale = [step for step in self.metrics() if step["staleness/max"] > 0]
        self.assertTrue(stale, self.metrics())
        self.assertTrue(all(step["staleness/max"] <= 2 for step in stale))
        # The bound that on-policy rollouts keep is one that a single step of training breaks.
        self.assertGreater(max(step["sampling/sampling_logp_difference/max"] for step in stale), 1e-3)

    def test_partial_rollouts_go_on_under_new_weights(self):
        # Sampling a few long completions takes longer than training on them. Wide weights seldom draw the stop token.
        run = self.start(30, "model.init_std=0.3", "rollout.prompts_per_step=1", "rollout.max_completion_tokens=200",
                         "rollout.reward=length", "algorithm.max_staleness=2", "rollout.partial_rollout=true", "log.rollouts=true")
        self.assertEqual(run.wait(60), 0, self.text())
        rollouts = [json.loads(line) for line in (self.run_dir / "rollouts.jsonl").read_text().splitlines()]
        mixed = [rollout for rollout in rollouts if len(rollout["versions"]) > 1]
        self.assertTrue(mixed, "no rollout has tokens of two versions")
        for rollout in mixed:
            spans = rollout["versions"]
            self.assertEqual(spans[0]["begin"], 0)
            self.assertTrue(all(a["end"] == b["begin"] and a["version"] < b["version"] for a, b in zip(spans, spans[1:])), spans)

    def test_a_killed_worker_is_replaced_and_the_run_goes_on(self):
        run = self.start(400)
        self.wait_for_step(3)
        os.kill(self.process("rollout"), signal.SIGKILL)
        self.wait_until(lambda: "worker0" in self.text() and "killed by signal 9" in self.text(), "the loss is reported")
        done = len(self.metrics())
        self.wait_for_step(done + 3)
        self.assertEqual(self.metrics()[-1]["staleness/max"], 0)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(DEADLINE_S), 130, self.text())
        self.assert_nothing_left()

    def test_a_killed_rank_stops_everything_and_is_named(self):
        for rank in ("0", "1"):
            with self.subTest(rank=rank):
                self.run_dir = self.folder / f"run{rank}"
                run = self.start(400)
                self.wait_for_step(2)
                killed = time.monotonic()
                os.kill(self.process("train", rank), signal.SIGKILL)
                self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
                self.assertLess(time.monotonic() - killed, DEADLINE_S)
                self.assertRegex(self.text(), rf"trainer rank {rank} \(pid \d+\) was killed by signal 9")
                self.assert_nothing_left()

    def test_ctrl_c_leaves_nothing_behind(self):
        run = self.start(400)
        self.wait_for_step(2)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(DEADLINE_S), 130, self.text())
        self.assert_nothing_left()

    def test_a_killed_parent_takes_its_children_along(self):
        run = self.start(400)
        self.wait_for_step(2)
        run.kill()
        run.wait(DEADLINE_S)
        self.assert_nothing_left()

    def test_the_same_command_goes_on_from_the_last_checkpoint(self):
        words = (self.warm_up(), "rollout.group_size=16", "checkpoint.every=3")
        run = self.start(400, *words)
        self.wait_for_step(7)
        os.kill(self.process("train", "0"), signal.SIGKILL)
        self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
        run = self.start(12, *words)
        self.assertEqual(run.wait(60), 0, self.text())
        self.assertRegex(self.text(), r"resuming from .*step-0\d+")
        self.assertEqual([step["step"] for step in self.metrics()], list(range(1, 13)))
        for step in self.metrics():
            self.assertLess(step["sampling/sampling_logp_difference/max"], 1e-4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
