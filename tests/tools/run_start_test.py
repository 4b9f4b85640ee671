"""What a start of a run compares, refuses and keeps: ranks, files, checkpoints, logs, exit codes.

Guards: ranks that train on different things; data, weights or checkpoints that have changed or are damaged and are used all
the same; output that is lost; a run that goes on although its directory is gone or nobody reads what it writes; exit codes
that are not those of the table in tools/README.md.

Usage: run_start_test.py RINGSIDE. Standard library only.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
GOLDENS = ROOT / "tests/goldens/regression"
DEADLINE_S = 60


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Start(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "run"
        self.model = self.folder / "model"
        shutil.copytree(GOLDENS / "policy", self.model)
        self.logs = 0

    def start(self, *words, environment=None, stderr=None) -> subprocess.Popen:
        command = [RINGSIDE, "train", "--run-dir", self.run_dir, f"model.path={self.model}", "rollout.group_size=4",
                   "rollout.prompts_per_step=2", "rollout.max_completion_tokens=12", "train.threads=1", "log.progress=lines",
                   "--rollouts", GOLDENS / "plain.jsonl", *words]
        self.logs += 1
        self.log = self.folder / f"log{self.logs}.txt"
        with open(self.log, "w") as log:
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=stderr or log,
                                       env=os.environ | (environment or {}))
        self.addCleanup(lambda: (process.kill(), process.wait()))
        return process

    def train(self, *words, code=0) -> str:
        self.assertEqual(self.start(*words).wait(DEADLINE_S), code, self.text())
        return self.text()

    def ringside(self, *words, code=0) -> subprocess.CompletedProcess:
        done = prestarted.run([str(word) for word in (RINGSIDE, *words)], capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def text(self) -> str:
        return self.log.read_text()

    def steps(self) -> list[int]:
        path = self.run_dir / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_steps(self, count: int):
        deadline = time.monotonic() + DEADLINE_S
        while len(self.steps()) < count:
            self.assertLess(time.monotonic(), deadline, self.text())
            time.sleep(0.02)

    def test_ranks_with_different_recipes_or_models_do_not_train(self):
        other = self.folder / "other"
        shutil.copytree(self.model, other)
        weights = bytearray((other / "model.safetensors").read_bytes())
        weights[-2] ^= 1
        (other / "model.safetensors").write_bytes(weights)
        for words, expected in ((("optimizer.learning_rate=0.25",), "optimizer.learning_rate: rank 0 has 1e-06, rank 1 has 0.25"),
                                (("train.steps=7",), "train.steps: rank 0 has 3, rank 1 has 7"),
                                (("parallel.ulysses_parallel_size=1", "parallel.ringattn_parallel_size=2"),
                                 "parallel.ringattn_parallel_size: rank 0 has 1, rank 1 has 2"),
                                (("--steps", "2"), "--steps: rank 0 has 3, rank 1 has 2"),
                                ((f"model.path={other}",), "the files of model.path: rank 0 has")):
            with self.subTest(words=words):
                place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
                common = ("train.steps=3", "parallel.ulysses_parallel_size=2", "parallel.collective_timeout_s=30")
                first = self.start(*common, environment=place | {"RANK": "0", "LOCAL_RANK": "0"})
                log = self.log
                second = self.start(*common, *words, environment=place | {"RANK": "1", "LOCAL_RANK": "1"})
                codes = first.wait(DEADLINE_S), second.wait(DEADLINE_S)
                self.assertEqual(codes, (1, 1), log.read_text())
                self.assertIn(expected, log.read_text())
                self.assertIn("nothing was trained", log.read_text())
                self.assertEqual(self.steps(), [])

    def test_a_reader_of_the_output_that_leaves_stops_the_run_with_a_checkpoint(self):
        for layout in ((), ("parallel.ulysses_parallel_size=2",)):
            with self.subTest(layout=layout):
                self.run_dir = self.folder / f"run{len(layout)}"
                run = self.start("train.steps=100000", *layout, stderr=subprocess.PIPE)
                self.wait_for_steps(3)
                run.stderr.close()
                self.assertEqual(run.wait(DEADLINE_S), 128 + signal.SIGPIPE)
                saved = [path.name for path in (self.run_dir / "checkpoints").iterdir()]
                self.assertEqual(saved, [f"step-{self.steps()[-1]:06d}"])
                self.assertRegex((self.run_dir / "run.log").read_text(), "run the same command to resume from")

    def test_changed_files_are_refused_like_changed_keys(self):
        self.train("train.steps=2")
        config = (self.model / "config.json").read_text()
        (self.model / "config.json").write_text(config + "\n")
        text = self.train("train.steps=3", code=2)
        self.assertIn("model.path: the contents of its files have changed", text)
        self.assertIn("--accept-changes", text)
        self.assertEqual(self.steps(), [1, 2])
        text = self.ringside("check", f"model.path={self.model}", "rollout.group_size=4", "rollout.prompts_per_step=2",
                             "rollout.max_completion_tokens=12", "--rollouts", GOLDENS / "plain.jsonl", "--run-dir", self.run_dir,
                             code=2).stderr
        self.assertIn("model.path: the contents of its files have changed", text)
        self.train("train.steps=3", "--accept-changes")
        self.assertNotIn("have changed", self.train("train.steps=4"))
        (self.run_dir / "config.yaml").unlink()
        self.assertIn("config.yaml is missing", self.train("train.steps=5", code=2))
        self.train("train.steps=5", "--accept-changes")
        self.assertEqual(self.steps(), [1, 2, 3, 4, 5])

    def test_a_resume_without_a_change_names_none(self):
        self.train("train.steps=2", "parallel.context_parallel_size=2")
        text = self.train("train.steps=3", "parallel.context_parallel_size=2")
        self.assertIn("resuming from", text)
        self.assertEqual([line for line in text.splitlines() if "has changed" in line and "train.steps" not in line], [])

    def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(self):
        for layout in ((), ("parallel.ulysses_parallel_size=2",)):
            with self.subTest(layout=layout):
                self.run_dir = self.folder / f"run{len(layout)}"
                checkpoints = self.run_dir / "checkpoints"
                self.train("train.steps=4", "checkpoint.every=2", *layout)
                part = sorted((checkpoints / "step-000004").glob("part-*"))[-1]
                part.write_bytes(part.read_bytes()[:-10])
                text = self.train("train.steps=6", *layout)
                self.assertRegex(text, rf"warn.*is damaged: \S*{part.name}.*step-000004\.damaged.*resumes from \S*step-000002")
                self.assertEqual(self.steps(), [1, 2, 3, 4, 5, 6])
                for path in checkpoints.iterdir():
                    if path.name != "step-000006":
                        shutil.rmtree(path)
                (checkpoints / "step-000006" / part.name).write_bytes(b"")
                self.assertRegex(self.train("train.steps=7", *layout, code=1), "the only checkpoint is damaged: .*remove .*step-000006")

    def test_a_run_whose_directory_is_removed_ends_with_an_error(self):
        run = self.start("train.steps=100000")
        self.wait_for_steps(3)
        shutil.rmtree(self.run_dir, ignore_errors=True)  # the run may write its end meanwhile
        self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
        self.assertRegex(self.text(), r"metrics.jsonl: was removed while the run writes it")

    def test_what_a_crash_left_is_kept_together(self):
        run = self.start("train.steps=100000")
        self.wait_for_steps(3)
        run.kill()
        run.wait()
        lost = {json.loads(line)["step"] for line in (self.run_dir / "samples.jsonl").read_text().splitlines()[:-1]}
        self.train("train.steps=2")
        kept = {json.loads(line)["step"] for line in (self.run_dir / "samples.1.jsonl").read_text().splitlines()[:-1]}
        self.assertEqual(kept, lost)
        self.assertTrue(list((self.run_dir / "tensorboard.1").iterdir()))
        self.assertEqual(len(list((self.run_dir / "tensorboard").iterdir())), 1)
        steps = [json.loads(line)["step"] for line in (self.run_dir / "samples.jsonl").read_text().splitlines()]
        self.assertEqual(set(steps), {1, 2})

    def test_the_log_of_all_processes_is_kept_also_over_starts(self):
        for layout in ((), ("parallel.ulysses_parallel_size=2",)):
            with self.subTest(layout=layout):
                self.run_dir = self.folder / f"run{len(layout)}"
                first = self.train("train.steps=2", *layout)
                second = self.train("train.steps=3", *layout)
                self.assertEqual((self.run_dir / "run.log").read_text(), first + second)
                for part in ("step 1/2", "step 3/3", "finished: 2 steps", "resuming from"):
                    self.assertIn(part, first + second)

    def test_a_killed_rank_is_told_with_what_to_do_also_in_the_warnings(self):
        run = self.start("train.steps=100000", "parallel.ulysses_parallel_size=2", "checkpoint.every=2")
        self.wait_for_steps(5)
        ranks = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(ranks[1]), signal.SIGKILL)
        self.assertEqual(run.wait(DEADLINE_S), 1, self.text())
        for text in (self.text(), (self.run_dir / "warnings.log").read_text(), (self.run_dir / "run.log").read_text()):
            self.assertRegex(text, r"trainer rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\): out of memory\?")
            self.assertRegex(text, r"run the same command to resume from \S*checkpoints/step-\d+")

    def test_what_cannot_be_used_has_exit_code_2(self):
        self.train("train.steps=1")
        checkpoint, final = self.run_dir / "checkpoints/step-000001", self.run_dir / "checkpoint-final"
        empty = self.folder / "empty"
        empty.mkdir()
        file = self.folder / "file"
        file.write_text("")
        ids = self.folder / "ids.jsonl"
        busy = socket.socket()
        self.addCleanup(busy.close)
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        good = (f"model.path={self.model}", "rollout.group_size=4", "rollout.prompts_per_step=2", "rollout.max_completion_tokens=12")
        cases = [
            (("export", final, self.folder / "out"), "is a model's directory already"),
            (("export", empty, self.folder / "out"), "is no complete checkpoint"),
            (("export", checkpoint, self.run_dir), "exists; expected a directory that does not"),
            (("report", empty), "has no metrics.jsonl"),
            (("top", empty), "holds no run"),
            (("check", *good, "--rollouts", GOLDENS / "plain.jsonl", "--run-dir", file), "is a file"),
            (("check", *good, "--rollouts", GOLDENS / "plain.jsonl", f"log.openmetrics=127.0.0.1:{port}"), "which cannot be bound"),
            (("check", *good, f"bridge.rollout_address=tcp://127.0.0.1:{port}"), "bridge.rollout_address"),
            (("train", *good, "--rollouts", GOLDENS / "plain.jsonl", "--run-dir", file / "run"), "is a file"),
            (("check", *good, "--memory", "80"), "expected a size such as 80GiB"),
            (("train", *good, "--train.steps", "5"), "train.steps=5"),
            (("train", *good, "--rundir", "x"), "did you mean --run-dir?"),
        ]
        for words, expected in cases:
            with self.subTest(words=words):
                self.assertIn(expected, self.ringside(*words, code=2).stderr)
        for line, expected in (([10 ** 9, 1], "outside the vocabulary"), ([1] * 5000, "more than the model's positions")):
            ids.write_text(json.dumps({"ids": line}) + "\n")
            text = self.ringside("logprobs", "--model", self.model, "--input", ids, "--output", self.folder / "o", code=2).stderr
            self.assertIn(expected, text)
            self.assertIn("ids.jsonl:1", text)

    def test_a_second_trainer_is_refused_and_top_tells_the_end(self):
        run = self.start("train.steps=100000", "checkpoint.every=2")
        self.wait_for_steps(3)
        text = self.train("train.steps=100000", code=2)
        self.assertIn("another trainer", text)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(DEADLINE_S), 143)
        done = self.steps()[-1]
        self.train(f"train.steps={done + 1}")
        once = self.ringside("top", self.run_dir, "--once")
        self.assertIn(f"step {done + 1}/{done + 1}", once.stdout)
        self.assertEqual(once.stderr, "")
        self.assertIn(f"finished: {done + 1} steps", self.ringside("top", self.run_dir).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
