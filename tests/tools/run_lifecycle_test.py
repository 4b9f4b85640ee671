"""What happens to a run on the way: an interrupt, a second start, a changed recipe, a slow rank 0, a model that diverges.

Guards the promises about a run directory: an interrupt saves at the next step, the same command goes on from there, nothing
of an earlier try is lost without a line, a changed recipe is refused key by key, a finished run says so, and a directory has
one trainer at a time. Rank 0 may take longer to evaluate than the ranks' collectives may wait. All but one run train on
recorded rollouts, so that no worker is needed.

Usage: run_lifecycle_test.py RINGSIDE. Standard library only.
"""

import fcntl
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
GOLDENS = ROOT / "tests/goldens/regression"
DEADLINE_S = 60


class Lifecycle(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "run"

    def start(self, *words: str, rollouts: bool = True, command: str = "train") -> subprocess.Popen:
        command = [RINGSIDE, command, "--run-dir", self.run_dir, f"model.path={GOLDENS / 'policy'}", "rollout.group_size=4",
                   "rollout.prompts_per_step=2", "rollout.max_completion_tokens=12", "train.threads=1",
                   *(["--rollouts", GOLDENS / "plain.jsonl"] if rollouts else []), *words]
        self.log = self.folder / f"log{len(list(self.folder.glob('log*')))}.txt"
        with open(self.log, "w") as log:
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
        self.addCleanup(lambda: (process.kill(), process.wait()))
        return process

    def run_to_end(self, *words: str, **options) -> int:
        return self.start(*words, **options).wait(DEADLINE_S)

    def text(self) -> str:
        return self.log.read_text()

    def steps(self, name: str = "metrics.jsonl") -> list[int]:
        path = self.run_dir / name
        # A running trainer may be in the middle of a line.
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line)["step"] for line in whole.splitlines()]

    def figures(self, key: str) -> list[float]:
        return [json.loads(line)[key] for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def wait_for_steps(self, count: int):
        deadline = time.monotonic() + DEADLINE_S
        while len(self.steps()) < count:
            self.assertLess(time.monotonic(), deadline, self.text())
            time.sleep(0.02)

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name[5:]) for path in (self.run_dir / "checkpoints").glob("step-??????"))

    def test_an_interrupt_saves_and_the_same_command_goes_on(self):
        for sent, layout in ((signal.SIGINT, ()), (signal.SIGTERM, ()), (signal.SIGHUP, ()), (signal.SIGINT, ("parallel.ulysses_parallel_size=2",))):
            with self.subTest(signal=sent, layout=layout):
                self.run_dir = self.folder / f"run-{sent}-{len(layout)}"
                run = self.start("train.steps=100000", *layout)
                self.wait_for_steps(5)
                run.send_signal(sent)
                time.sleep(0.01)  # and again, as timeout(1) does: to the process and to its group
                run.send_signal(sent)
                self.assertEqual(run.wait(DEADLINE_S), 128 + sent, self.text())
                done = self.steps()[-1]
                self.assertEqual(self.checkpoints(), [done], self.text())
                self.assertRegex(self.text(), rf"stopped by SIG\w+ after step {done}; .*step-{done:06d}")
                self.assertEqual(self.run_to_end(f"train.steps={done + 3}", *layout), 0, self.text())
                self.assertEqual(self.steps(), list(range(1, done + 4)))

    def test_a_signal_to_one_rank_stops_all_of_them_at_the_same_step(self):
        run = self.start("train.steps=100000", "parallel.ulysses_parallel_size=2")
        self.wait_for_steps(5)
        ranks = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(ranks), 2)
        os.kill(int(ranks[1]), signal.SIGTERM)
        self.assertNotEqual(run.wait(DEADLINE_S), 0)
        self.assertEqual(self.checkpoints(), [self.steps()[-1]], self.text())

    def test_a_run_stopped_at_one_layout_goes_on_at_another(self):
        one = ()
        stages, tensor, shard = ((f"parallel.{axis}_size=2",) for axis in
                                 ("pipeline_parallel", "tensor_parallel", "data_parallel_shard"))
        for layouts in ((stages, one, stages), (tensor, shard, one, tensor)):
            with self.subTest(layouts=layouts):
                # Without its dots, of which with_suffix() below would take what differs.
                self.run_dir = self.folder / layouts[0][0].split("=")[0].replace(".", "-")
                exact = ["model.dtype=float64", "optimizer.learning_rate=1e-3"]
                run = self.start("train.steps=100000", *exact, *layouts[0])
                self.wait_for_steps(3)
                run.send_signal(signal.SIGINT)
                self.assertEqual(run.wait(DEADLINE_S), 128 + signal.SIGINT, self.text())
                done = self.steps()[-1]
                self.assertEqual(self.checkpoints(), [done], self.text())
                for layout in layouts[1:]:
                    done += 2
                    self.assertEqual(self.run_to_end(f"train.steps={done}", *exact, *layout), 0, self.text())
                self.assertEqual(self.steps(), list(range(1, done + 1)))
                found = self.figures("grad_norm")
                self.run_dir = self.run_dir.with_suffix(".whole")
                self.assertEqual(self.run_to_end(f"train.steps={done}", *exact), 0, self.text())
                for step, (at_layouts, at_one) in enumerate(zip(found, self.figures("grad_norm"), strict=True), 1):
                    self.assertLess(abs(at_layouts - at_one), 1e-8 * at_one, f"step {step} of {found}")

    def test_a_killed_rank_of_a_pipeline_ends_the_run_and_is_named(self):
        run = self.start("train.steps=100000", "parallel.pipeline_parallel_size=2")
        self.wait_for_steps(2)
        ranks = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(ranks), 2)
        os.kill(int(ranks[1]), signal.SIGKILL)
        self.assertNotEqual(run.wait(DEADLINE_S), 0)
        self.assertRegex(self.text(), r"rank 1\b")

    def test_an_interrupt_while_no_rollouts_come_saves_what_was_trained(self):
        run = self.start("train.steps=5", "checkpoint.every=0")
        self.assertEqual(run.wait(DEADLINE_S), 0, self.text())
        run = self.start("train.steps=100", "parallel.ulysses_parallel_size=2", rollouts=False)
        deadline = time.monotonic() + DEADLINE_S
        while "no rollout worker is connected" not in self.text():
            self.assertLess(time.monotonic(), deadline, self.text())
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        begin = time.monotonic()
        self.assertEqual(run.wait(DEADLINE_S), 130, self.text())
        self.assertLess(time.monotonic() - begin, 15)
        self.assertRegex(self.text(), "stopped by SIGINT after step 5; .*checkpoints/step-000005")

    def test_the_default_saves_by_time_and_keeps_two(self):
        run = self.start("train.steps=100000", "checkpoint.every_minutes=0.005")
        deadline = time.monotonic() + DEADLINE_S
        seen = set()
        while len(seen) < 4:
            seen |= set(self.checkpoints())
            self.assertLess(time.monotonic(), deadline, self.text())
            self.assertLessEqual(len(self.checkpoints()), 3)  # one more while the oldest is removed
            time.sleep(0.01)
        run.kill()

    def test_a_try_without_a_checkpoint_is_kept_and_told(self):
        run = self.start("train.steps=100000")
        self.wait_for_steps(5)
        run.kill()
        run.wait()
        lost = len((self.run_dir / "metrics.jsonl").read_bytes().splitlines())
        self.assertEqual(self.run_to_end("train.steps=3"), 0, self.text())
        self.assertEqual(self.steps(), [1, 2, 3])
        self.assertEqual(self.steps("metrics.1.jsonl"), list(range(1, lost + 1)))
        self.assertRegex(self.text(), rf"{lost} steps of an earlier try.*metrics\.1\.jsonl")

    def test_a_changed_recipe_is_refused_key_by_key(self):
        self.assertEqual(self.run_to_end("train.steps=3"), 0, self.text())
        changed = ("train.steps=6", "seed=7", "optimizer.learning_rate=0.5", "log.progress=lines")
        self.assertEqual(self.run_to_end(*changed), 2, self.text())
        self.assertIn("seed: was 1, now 7", self.text())
        self.assertIn("optimizer.learning_rate: was 1e-06, now 0.5", self.text())
        self.assertNotIn("log.progress: was", self.text())
        self.assertEqual(self.steps(), [1, 2, 3])
        self.assertEqual(self.run_to_end(*changed, "--accept-changes"), 0, self.text())
        self.assertIn("seed: was 1, now 7", self.text())
        self.assertEqual(self.steps(), [1, 2, 3, 4, 5, 6])
        # What was accepted is the run's configuration from then on.
        self.assertEqual(self.run_to_end("train.steps=7", *changed[1:]), 0, self.text())

    def test_a_finished_run_says_so(self):
        self.assertEqual(self.run_to_end("train.steps=3"), 0, self.text())
        before = (self.run_dir / "checkpoint-final/ringside.json").stat().st_mtime_ns
        for command in ("train", "run"):
            begin = time.monotonic()
            self.assertEqual(self.run_to_end("train.steps=3", command=command, rollouts=command == "train"), 0, self.text())
            self.assertLess(time.monotonic() - begin, 5)
            self.assertRegex(self.text(), "already finished: 3 steps, .*checkpoint-final")
            self.assertNotIn("worker", self.text())
        self.assertEqual((self.run_dir / "checkpoint-final/ringside.json").stat().st_mtime_ns, before)

    def test_a_finished_run_without_its_checkpoints_does_not_start_again_in_silence(self):
        self.assertEqual(self.run_to_end("train.steps=3"), 0, self.text())
        shutil.rmtree(self.run_dir / "checkpoints")
        self.assertEqual(self.run_to_end("train.steps=5"), 2, self.text())
        self.assertRegex(self.text(), "checkpoint-final holds the weights of step 3, but .*checkpoints holds no checkpoint")
        self.assertEqual(self.run_to_end("train.steps=5", "--accept-changes"), 0, self.text())
        self.assertEqual(self.steps(), [1, 2, 3, 4, 5])

    def test_a_damaged_checkpoint_is_refused_by_its_file(self):
        words = ("train.steps=3", "parallel.ulysses_parallel_size=2")
        self.assertEqual(self.run_to_end(*words), 0, self.text())
        part = self.run_dir / "checkpoints/step-000003/part-00001-of-00002.safetensors"
        content = part.read_bytes()
        for damaged in (content[:-5], content[:-5] + b"other", None):
            part.unlink()
            if damaged is not None:
                part.write_bytes(damaged)
            self.assertEqual(self.run_to_end("train.steps=4", *words[1:]), 1, self.text())
            self.assertIn(part.name, self.text())
            part.write_bytes(content)
        self.assertEqual(self.run_to_end("train.steps=4"), 0, self.text())
        self.assertRegex(self.text(), "resuming from .*step-000003")

    def test_a_directory_has_one_trainer_at_a_time(self):
        first = self.start("train.steps=100000")
        self.wait_for_steps(2)
        endpoint = self.run_dir / "bridge" / "endpoint.json"
        endpoint.parent.mkdir(exist_ok=True)
        endpoint.write_text("{}")
        for command in ("train", "run"):
            self.assertEqual(self.run_to_end("train.steps=100000", command=command, rollouts=command == "train"), 2, self.text())
            self.assertRegex(self.text(), rf"another trainer \(pid {first.pid}\) is at work in .*run")
        self.assertIsNone(first.poll())
        self.assertTrue(endpoint.exists())

    def test_an_evaluation_longer_than_the_collectives_may_wait(self):
        class Slow(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(3)  # the collectives may take 2 s
                body = b'{"reward": 0.5}'
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(lambda: (server.shutdown(), server.server_close()))
        data = self.folder / "data"
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", data, "--sft", "10", "--train", "10",
                        "--held-out", "1", "--test", "1"], check=True, stdout=subprocess.DEVNULL)
        words = [f"model.path={data / 'model'}", "model.init=random", "parallel.ulysses_parallel_size=2",
                 "parallel.collective_timeout_s=2", "eval.every=1", f"data.eval={data / 'held_out.jsonl'}",
                 "eval.max_prompts=1", "rollout.reward=http", f"rollout.reward_options.http_url=http://127.0.0.1:{server.server_port}/",
                 "train.steps=2"]
        self.assertEqual(self.run_to_end(*words), 0, self.text())
        lines = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([(line["step"], line["eval_reward"]) for line in lines], [(0, 0.5), (1, 0.5), (2, 0.5)])
        self.assertIn("evaluation before training: reward 0.5", self.text())
        self.assertRegex(self.text(), r"step 2/2 .* eval 0\.5000")

    def test_a_diverged_model_ends_the_run_with_step_and_figure(self):
        self.assertEqual(self.run_to_end("train.steps=50", "optimizer.learning_rate=1", "checkpoint.every=1",
                                         "optimizer.weight_decay=1e38"), 1, self.text())
        last = self.steps()[-1] if self.steps() else 0
        self.assertRegex(self.text(), rf"step {last + 1}: .*(is (-?nan|-?inf)|not finite)")
        self.assertNotIn("Exception raised from", self.text())
        self.assertNotIn("frame #", self.text())
        self.assertFalse((self.run_dir / "checkpoint-final").exists())
        self.assertTrue(all(step <= last for step in self.checkpoints()))

    def test_a_taken_port_is_named_with_its_key(self):
        import socket
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for key in ("rollout", "weights"):
                self.assertEqual(self.run_to_end(f"bridge.{key}_address=tcp://127.0.0.1:{port}", rollouts=False), 2, self.text())
                self.assertRegex(self.text(), rf"bridge\.{key}_address.*tcp://127\.0\.0\.1:{port}.*in use")

    def test_the_same_error_is_told_once_with_the_rank(self):
        # Weights are loaded by the ranks alone: what is opened before the start reads only their headers.
        model = self.folder / "model"
        shutil.copytree(GOLDENS / "policy", model)
        weights = bytearray((model / "model.safetensors").read_bytes())
        weights[-8:] = struct.pack("<ff", float("nan"), float("nan"))
        (model / "model.safetensors").write_bytes(weights)
        self.assertEqual(self.run_to_end(f"model.path={model}", "parallel.ulysses_parallel_size=2"), 1)
        self.assertEqual(len(re.findall("not finite", self.text())), 1, self.text())
        self.assertRegex(self.text(), "trainer rank [01]")

    def test_a_worker_that_can_only_die_ends_the_run_with_its_own_error(self):
        data = self.folder / "data"
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", data, "--sft", "10", "--train", "10",
                        "--held-out", "1", "--test", "1"], check=True, stdout=subprocess.DEVNULL)
        # No server listens at that port: only the worker finds out.
        self.assertNotEqual(self.run_to_end(f"model.path={data / 'model'}", "model.init=random",
                                            f"data.train={data / 'train.jsonl'}", "rollout.server=python",
                                            "rollout.server_options.url=http://127.0.0.1:9",
                                            "rollout.server_options.load_timeout_s=0.1", command="run", rollouts=False), 0)
        self.assertRegex(self.text().strip().splitlines()[-1], "rollout.server.*127.0.0.1:9")

    def test_a_worker_that_joins_is_told_while_steps_run(self):
        data = self.folder / "data"
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", data, "--sft", "10", "--train", "50",
                        "--held-out", "1", "--test", "1"], check=True, stdout=subprocess.DEVNULL)
        run = self.start(f"model.path={data / 'model'}", "model.init=random", f"data.train={data / 'train.jsonl'}",
                         "train.steps=100000", command="run", rollouts=False)
        self.wait_for_steps(10)
        time.sleep(0.5)
        self.assertRegex(self.text(), "worker0 joined")
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(DEADLINE_S), 130, self.text())
        self.assertEqual(self.checkpoints(), [self.steps()[-1]], self.text())

    def test_a_bar_on_a_terminal_is_never_torn_and_follows_its_width(self):
        data = self.folder / "data"
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", data, "--sft", "10", "--train", "50",
                        "--held-out", "1", "--test", "1"], check=True, stdout=subprocess.DEVNULL)
        self.log = self.folder / "log.txt"
        self.log.touch()
        terminal, end = os.openpty()
        self.addCleanup(os.close, terminal)
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        run = subprocess.Popen([str(word) for word in (
            RINGSIDE, "run", "--run-dir", self.run_dir, f"model.path={data / 'model'}", "model.init=random", "rollout.group_size=4",
            "rollout.prompts_per_step=2", "rollout.max_completion_tokens=12", "train.threads=1", "train.steps=100000",
            f"data.train={data / 'train.jsonl'}", "bridge.worker_timeout_s=2", "bridge.heartbeat_s=0.5")],
            stdout=end, stderr=end, env=environment | {"TERM": "xterm"})
        os.close(end)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        screen = bytearray()

        def read():
            try:
                while part := os.read(terminal, 4096):
                    screen.extend(part)
            except OSError:
                pass  # the other end is closed

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self.wait_for_steps(10)
        worker = subprocess.run(["pgrep", "-P", str(run.pid), "-f", "worker-id worker0"], capture_output=True, text=True).stdout.split()
        os.kill(int(worker[0]), signal.SIGKILL)
        deadline = time.monotonic() + DEADLINE_S
        while screen.count(b"connected to run") < 2:
            self.assertLess(time.monotonic(), deadline, screen)
            time.sleep(0.05)
        self.wait_for_steps(len(self.steps()) + 5)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        time.sleep(0.3)
        resized = len(screen)
        self.wait_for_steps(len(self.steps()) + 5)
        narrow = screen[resized:]
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(DEADLINE_S), 130, screen)
        reader.join(5)
        dates = [match.start() for match in re.finditer(rb"\d{4}-\d\d-\d\d \d\d:", screen)]
        self.assertGreater(len(dates), 6)
        for at in dates:
            self.assertIn(bytes(screen[max(0, at - 1):at]), (b"", b"\n", b"J"), screen[max(0, at - 80):at + 80])
        lines = [re.sub(rb"\x1b\[\d*[mJ]", b"", line) for line in re.findall(rb"[\r\n]([^\r\n]*?)(?:\x1b\[K|\x1b\[J\x1b\[\d+A)", narrow)]
        self.assertTrue([line for line in lines if re.search(rb"reward|eta|tok/s", line)], narrow)
        self.assertLess(max(len(line) for line in lines), 40)


if __name__ == "__main__":
    unittest.main(verbosity=2)
