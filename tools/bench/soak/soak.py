"""An hour of a live run whose workers come and go: does memory stay, do steps go on?

`ringside run` trains the small sorting model on two ranks with one worker of its own. Each minute a guest worker joins
and leaves again, by SIGTERM and by kill -9 in turn. Every ten seconds the resident memory of the trainer ranks and of
the lasting worker is read. Held against limits:

  memory   mean over the last twelfth of the time <= 1.02 x the mean from a sixth to a quarter of it (of 60 minutes: the
           last 5 against minutes 10 to 15), for each lasting process
  stalls   no two steps further apart than --max-gap seconds
  life     no lasting process dies, the run goes on to the end and stops at once when it is told to

Usage: .env/oracle/bin/python tools/bench/soak/soak.py [--minutes 60] [--out DIRECTORY] [--binary build/ringside]
Writes soak-DATE.json with the series and soak-DATE.png there (default: tools/bench/results) and exits 1 when a limit is
broken. The run directory is removed unless --keep names one.
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import psutil

ROOT = pathlib.Path(__file__).resolve().parents[3]
MEMORY_GROWTH = 1.02
SAMPLE_EVERY_S = 10.0
GUEST_EVERY_S, GUEST_STAYS_S = 60.0, 35.0
EARLY, LATE = (1 / 6, 1 / 4), (11 / 12, 1.0)  # parts of the time whose memory is compared
MIB = 1 << 20


def prepare(folder: pathlib.Path, binary: pathlib.Path) -> list[str]:
    """Data and a model that solves some prompts, so that rewards differ and each step changes the weights. Returns the
    words that `run` and `rollout` share."""
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", folder / "data", "--sft", "2000",
                    "--train", "2000", "--held-out", "20", "--test", "20"], **quiet)
    subprocess.run([binary, "train", ROOT / "recipes/quickstart/sft.yaml", "--run-dir", folder / "sft", "--steps", "60",
                    f"model.path={folder / 'data/model'}", f"data.sft={folder / 'data/sft.jsonl'}"], **quiet)
    return [str(ROOT / "recipes/quickstart/grpo.yaml"), f"model.path={folder / 'sft/checkpoint-final'}",
            f"data.train={folder / 'data/train.jsonl'}", "rollout.prompts_per_step=4", "rollout.group_size=8",
            "bridge.worker_timeout_s=5", "bridge.heartbeat_s=0.5", "optimizer.learning_rate=1e-5",
            "optimizer.lr_schedule=constant", "optimizer.warmup_steps=0", "checkpoint.every=100"]


def lasting_processes(run: psutil.Process) -> dict[str, psutil.Process]:
    """The run's children by what they are; empty while they are not all there."""
    found = {}
    for child in run.children():
        words, environment = child.cmdline(), child.environ()
        if len(words) > 1 and words[1] == "train":
            found[f"rank {environment.get('RANK')}"] = child
        elif len(words) > 1 and words[1] == "rollout":
            found["worker"] = child
    return found if len(found) == 3 else {}


class Metrics:
    """Step numbers and times out of a metrics file that grows, read once each."""

    def __init__(self, path: pathlib.Path):
        self._path, self._offset, self._rest = path, 0, b""
        self.steps, self.slowest_step_s, self.last_seen = 0, 0.0, time.monotonic()

    def update(self) -> None:
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            text = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = text.split(b"\n")
        for line in lines:
            values = json.loads(line)
            self.steps = values["step"]
            if self.steps > 1:  # the first waits for the first worker
                self.slowest_step_s = max(self.slowest_step_s, values["step_time"])
        if lines:
            self.last_seen = time.monotonic()

    def gap(self) -> float:
        return max(self.slowest_step_s, time.monotonic() - self.last_seen)


class Guests:
    """A worker that joins each minute and leaves, by SIGTERM and by kill -9 in turn."""

    def __init__(self, command: list[str], log):
        self._command, self._log = command, log
        self._guest, self._count, self._joined_at = None, 0, time.monotonic()
        self.left = {"SIGTERM": 0, "SIGKILL": 0}

    def tick(self) -> None:
        now = time.monotonic()
        if self._guest is None and now - self._joined_at >= GUEST_EVERY_S:
            self._count += 1
            self._guest = subprocess.Popen([*self._command, "--worker-id", f"guest{self._count}"], stdout=self._log,
                                           stderr=self._log)
            self._joined_at = now
        elif self._guest is not None and now - self._joined_at >= GUEST_STAYS_S:
            self.dismiss()

    def dismiss(self) -> None:
        if self._guest is None:
            return
        way = signal.SIGTERM if self._count % 2 else signal.SIGKILL
        self._guest.send_signal(way)
        status = self._guest.wait(60)
        expected = 0 if way == signal.SIGTERM else -signal.SIGKILL
        if status != expected:
            raise SystemExit(f"soak: guest{self._count} left with status {status}, expected {expected}")
        self.left[way.name] += 1
        self._guest = None


def mean_between(series: list[list[float]], begin: float, end: float) -> float:
    values = [value for at, value in series if begin <= at <= end]
    return sum(values) / len(values) if values else float("nan")


def watch(run: subprocess.Popen, guests: Guests, metrics: Metrics, options) -> tuple[dict, list[str]]:
    """The series of every lasting process, [seconds, MiB], and what went wrong."""
    deadline = time.monotonic() + 120
    while not (lasting := lasting_processes(psutil.Process(run.pid))):
        if time.monotonic() > deadline or run.poll() is not None:
            return {}, ["the run's processes did not start"]
        time.sleep(0.1)
    begin = time.monotonic()
    series, next_sample = {name: [] for name in lasting}, begin
    series["steps"] = []
    while (now := time.monotonic()) - begin < options.minutes * 60:
        guests.tick()
        if now >= next_sample:
            next_sample += SAMPLE_EVERY_S
            metrics.update()
            series["steps"].append([now - begin, metrics.steps])
            for name, process in lasting.items():
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    return series, [f"{name} died after {now - begin:.0f} s"]
                series[name].append([now - begin, process.memory_info().rss / MIB])
            if metrics.gap() > options.max_gap:
                return series, [f"no step for {metrics.gap():.1f} s, limit {options.max_gap} s"]
        if run.poll() is not None:
            return series, [f"the run ended with status {run.returncode} after {now - begin:.0f} s"]
        time.sleep(0.2)
    return series, []


def judge_memory(series: dict, seconds: float) -> tuple[dict, list[str]]:
    memory, problems = {}, []
    for name in (name for name in series if name != "steps"):
        early, late = (mean_between(series[name], a * seconds, b * seconds) for a, b in (EARLY, LATE))
        memory[name] = {"early_mib": early, "late_mib": late, "growth": late / early - 1}
        if not late <= MEMORY_GROWTH * early:
            problems.append(f"{name} grew from {early:.1f} to {late:.1f} MiB")
    return memory, problems


def stop(run: subprocess.Popen) -> list[str]:
    if run.poll() is not None:
        return []
    run.send_signal(signal.SIGINT)
    try:
        status = run.wait(60)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()
        return ["the run did not stop within 60 s of SIGINT"]
    return [] if status == 130 else [f"the run stopped with status {status}, expected 130"]


def plot(series: dict, path: pathlib.Path) -> None:
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 6))
    for name in (name for name in series if name != "steps"):
        above.plot([at / 60 for at, _ in series[name]], [value for _, value in series[name]], label=name)
    above.set_ylabel("resident MiB")
    above.legend()
    below.plot([at / 60 for at, _ in series["steps"]], [value for _, value in series["steps"]])
    below.set_ylabel("steps")
    below.set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tools/bench/results")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/ringside")
    parser.add_argument("--max-gap", type=float, default=20.0, help="longest time between two steps, in seconds")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the run, kept; default: a temporary one")
    parser.add_argument("overrides", nargs="*", help="key.sub=value, for trainer and workers")
    return parser.parse_args()


def soak(folder: pathlib.Path, options) -> int:
    words = [*prepare(folder, options.binary), *options.overrides]
    run_dir = folder / "run"
    with open(folder / "log.txt", "w") as log:
        run = subprocess.Popen([options.binary, "run", *words, "--run-dir", run_dir, "--steps", "100000000"],
                               stdout=log, stderr=log)
        guests = Guests([str(options.binary), "rollout", *words, "--run-dir", str(run_dir)], log)
        metrics = Metrics(run_dir / "metrics.jsonl")
        try:
            series, problems = watch(run, guests, metrics, options)
            guests.dismiss()
        finally:
            problems_at_end = stop(run)
    problems += problems_at_end
    metrics.update()
    memory = {}
    if series:
        memory, grown = judge_memory(series, options.minutes * 60)
        problems += grown
    stamp = datetime.datetime.now().strftime("%Y-%m-%dT%H%M")
    result = {"date": stamp, "minutes": options.minutes, "steps": metrics.steps, "slowest_step_s": metrics.slowest_step_s,
              "guests": guests.left, "memory": memory, "overrides": options.overrides, "problems": problems,
              "cores": os.cpu_count(), "series": series}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"soak-{stamp}.json").write_text(json.dumps(result) + "\n")
    if series:
        plot(series, options.out / f"soak-{stamp}.png")
    print(json.dumps({key: value for key, value in result.items() if key != "series"}, indent=2))
    return 1 if problems else 0


def main() -> int:
    options = parse_arguments()
    if options.keep:
        options.keep.mkdir(parents=True)
        return soak(options.keep, options)
    with tempfile.TemporaryDirectory(prefix="ringside-soak-") as name:
        return soak(pathlib.Path(name), options)


if __name__ == "__main__":
    sys.exit(main())
