"""One run of the real program under faults: its processes, started again by the same command whenever they die."""

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[3]
RESTART_PAUSE_S = 0.2
LEAVE_S = 20.0  # a worker may take so long to leave after SIGTERM


def free_port() -> int:
    """Below the range that outgoing connections draw from, so that nobody takes it while the trainer is away."""
    while True:
        port = random.SystemRandom().randrange(12000, 30000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Process:
    """A command that is started again when it dies, unless it exited with status 0."""

    def __init__(self, name: str, command: list, folder: pathlib.Path, env: dict | None = None):
        self.name, self.command, self.log = name, [str(word) for word in command], folder / f"{name}.log"
        self._env = {**os.environ, **(env or {})}
        self.child: subprocess.Popen | None = None
        self.done = False
        self.starts = 0
        self.expected_death = False  # the next death was caused by a fault
        self.unexpected: list[str] = []  # exits that no fault explains, with the log's last lines
        self._restart_at = 0.0

    def start(self) -> None:
        with open(self.log, "ab") as log:
            # SIGXFSZ and SIGPIPE stay as the shell's children have them.
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log, env=self._env, cwd=self.log.parent)
        self.starts += 1

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def last_lines(self, count: int = 1) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " | ".join(lines[-count:])

    def tick(self, on_death) -> None:
        """Notices a death, calls on_death() before the restart, starts again after a pause."""
        if self.child is not None and self.child.poll() is not None and not self.done:
            status, self.child = self.child.returncode, None
            if status == 0:
                self.done = True
                return
            if not self.expected_death:
                self.unexpected.append(f"{self.name} exited with status {status}: {self.last_lines(4)}")
            self.expected_death = False
            on_death()
            self._restart_at = time.monotonic() + RESTART_PAUSE_S
        if self.child is None and not self.done and time.monotonic() >= self._restart_at:
            self.start()

    def target(self) -> int | None:
        """The process a fault strikes: of a trainer over several ranks rank 0, otherwise the child itself."""
        if not self.alive:
            return None
        try:
            for child in psutil.Process(self.child.pid).children():
                if child.environ().get("RANK") == "0":
                    return child.pid
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            return None
        return self.child.pid

    def signal(self, number: int) -> bool:
        pid = self.target()
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> bool:
        if not self.signal(signal.SIGKILL):
            return False
        self.expected_death = True
        return True

    def end(self) -> str | None:
        """Asks it to leave; what is wrong with the way it went, if anything."""
        if not self.alive:
            return None
        self.child.send_signal(signal.SIGCONT)
        self.child.send_signal(signal.SIGTERM)
        try:
            status = self.child.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            return f"{self.name} did not leave within {LEAVE_S:.0f} s of SIGTERM"
        return None if status in (0, -signal.SIGTERM) else f"{self.name} left with status {status}: {self.last_lines(4)}"


class Scene:
    """Folder, words and processes of one run. run_dir may be a mount of its own."""

    def __init__(self, folder: pathlib.Path, binary: pathlib.Path, data: pathlib.Path, rng: random.Random, steps: int,
                 ranks: int, workers: int, staleness: int, encoding: str):
        self.folder, self.binary, self.rng, self.steps = folder, binary, rng, steps
        self.ranks, self.num_workers, self.staleness, self.encoding = ranks, workers, staleness, encoding
        self.prompts_per_step, self.group_size = 4, 4
        self.shared_memory = rng.random() < 0.5  # weights; an arrangement that strikes their messages turns it off
        folder.mkdir(parents=True)
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self.weights_dir = folder / "weights"
        self.rollout_port, self.weights_port = free_port(), free_port()
        self.words = [
            str(ROOT / "recipes/quickstart/grpo.yaml"), f"model.path={data / 'model'}",
            f"data.train={data / 'train.jsonl'}", f"rollout.prompts_per_step={self.prompts_per_step}",
            f"rollout.group_size={self.group_size}", f"train.steps={steps}", "bridge.worker_timeout_s=1.5",
            "bridge.heartbeat_s=0.3", "optimizer.learning_rate=5e-4", "optimizer.lr_schedule=constant",
            "optimizer.warmup_steps=0", "checkpoint.every=3", "log.rollouts=true", "log.progress=lines",
            f"weights.directory={self.weights_dir}", "weights.keep=0", f"weights.encoding={encoding}",
            *(["weights.full_every=8"] if encoding == "auto" else []), f"algorithm.max_staleness={staleness}",
            f"parallel.ulysses_parallel_size={ranks}"]
        self.trainer_words: list[str] = []  # of the trainer alone
        self.trainer_env: dict[str, str] = {}
        self.worker_env: dict[str, str] = {}
        self.rollout_address = f"tcp://127.0.0.1:{self.rollout_port}"
        self.weights_address = f"tcp://127.0.0.1:{self.weights_port}"
        self.worker_rollout_address, self.worker_weights_address = self.rollout_address, self.weights_address
        self.worker_words: list[str] = []
        self.beside: list[Process] = []  # long-lived processes that no fault strikes
        self.worker_options: list[str] = []  # after `rollout RECIPE`
        self.journal_copies: list[pathlib.Path] = []
        self.trainer: Process | None = None
        self.workers: list[Process] = []

    def start(self) -> None:
        self.trainer = Process("trainer", [
            self.binary, "train", *self.words, f"weights.shared_memory={str(self.shared_memory).lower()}", *self.trainer_words, "--run-dir", self.run_dir,
            f"bridge.rollout_address={self.rollout_address}", f"bridge.weights_address={self.weights_address}"],
            self.folder, self.trainer_env)
        self.workers = [Process(f"worker{i}", [
            self.binary, "rollout", *self.words, *self.worker_words, *self.worker_options, "--worker-id", f"worker{i}",
            f"bridge.rollout_address={self.worker_rollout_address}",
            f"bridge.weights_address={self.worker_weights_address}"], self.folder, self.worker_env)
            for i in range(self.num_workers)]
        for process in self.processes():
            process.start()

    def processes(self) -> list[Process]:
        return [*self.beside, self.trainer, *self.workers]

    def tick(self) -> None:
        for process in self.processes():
            process.tick(self._keep_journal if process is self.trainer else lambda: None)

    def _keep_journal(self) -> None:
        """A copy at each death of the trainer: a start cuts what it takes for a torn tail."""
        journal = self.run_dir / "bridge/journal/journal.bin"
        if journal.exists():
            copy = self.folder / f"journal-{len(self.journal_copies):03d}.bin"
            shutil.copyfile(journal, copy)
            self.journal_copies.append(copy)

    def progress(self) -> int:
        """Grows with each step that is begun, in every start of the trainer."""
        history = self.run_dir / "rollouts.jsonl"
        return history.stat().st_size if history.exists() else 0

    @property
    def finished(self) -> bool:
        return self.trainer.done

    def end(self) -> list[str]:
        """After the trainer: workers were told to leave, and those that came later are asked to."""
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline and any(worker.alive for worker in self.workers):
            time.sleep(0.05)
        problems = [process.end() for process in self.processes()]
        problems += [text for process in self.processes() for text in process.unexpected]
        return [problem for problem in problems if problem]

    def kill_everything(self) -> None:
        for process in self.processes():
            if process.child is None:
                continue
            try:
                family = [psutil.Process(process.child.pid), *psutil.Process(process.child.pid).children(recursive=True)]
                for member in family:
                    member.kill()
            except psutil.NoSuchProcess:
                pass
            process.child.wait()
