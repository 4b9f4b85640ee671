"""A million malformed messages to live trainers: a bare endpoint, and a real training run.

Usage: run.py BENCH_FRAMES RINGSIDE [--messages N] [--out FILE]. README.md says what is checked. Standard library only.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
SETTLE_S = 5
DEADLINE_S = 1800
HEADER_SHARE = 0.3
OF_THE_BRIDGE = ("bridge/", "weights/bytes")  # count what the attack does
GROWTH_KIB = 128 * 1024  # what a flood may add to the trainer's memory: socket buffers, the journal's pages


class Failure(Exception):
    """A check that did not hold; the figures are printed all the same."""


def check(condition: bool, what: str, failures: list):
    if not condition:
        failures.append(what)
        print("frames: FAILED:", what, file=sys.stderr)


def wait_for(condition, what: str, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def memory_kib(pid: int, field: str = "VmRSS") -> int:
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def attack(bench: str, endpoint: pathlib.Path, messages: int, seed: int) -> dict:
    done = subprocess.run([bench, "attack", endpoint, str(messages), str(seed)], stdout=subprocess.PIPE, check=True,
                          timeout=DEADLINE_S)
    return json.loads(done.stdout)


def check_sender(sent: dict, failures: list):
    check(sent["header_share"] >= HEADER_SHARE, f"{sent['header_share']:.3f} of the headers pass, wanted {HEADER_SHARE}",
          failures)
    check(not sent["stalled"], "the trainer took nothing for a while", failures)


class Bridge:
    """A TrainerEndpoint and a good worker, each a process, with known rollouts."""

    def __init__(self, bench: str, folder: pathlib.Path):
        self.folder = folder
        self.lines = []
        self.trainer = subprocess.Popen([bench, "trainer", folder], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()
        self.endpoint = folder / "endpoint.json"
        wait_for(self.endpoint.exists, "endpoint.json")
        self.worker = subprocess.Popen([bench, "worker", self.endpoint])

    def read(self):
        for line in self.trainer.stdout:
            self.lines.append(json.loads(line))

    def stop(self) -> tuple[int, int]:
        (self.folder / "stop").touch()
        return self.trainer.wait(120), self.worker.wait(60)

    def kill(self):
        for process in (self.trainer, self.worker):
            process.kill()
            process.wait()


def attack_bridge(bench: str, messages: int, failures: list) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        bridge = Bridge(bench, pathlib.Path(folder))
        try:
            time.sleep(SETTLE_S)
            before = bridge.lines[-1]
            sent = attack(bench, bridge.endpoint, messages, seed=1)
            time.sleep(SETTLE_S)
            after = bridge.lines[-1]
            statuses = bridge.stop()
        finally:
            bridge.kill()
        last = bridge.lines[-1]
        alone = before["popped"] / (len([line for line in bridge.lines if line["messages"] <= before["messages"]]) or 1)
        check_sender(sent, failures)
        check(statuses == (0, 0), f"trainer and worker ended with {statuses}", failures)
        rejected = sum(last["rejected"].values())
        weight_rejected = sum(last["weight_rejected"].values())
        check(last["messages"] >= sent["rollouts_socket"], f"{last['messages']} messages counted", failures)
        # What was not refused: the good worker's and what the sender left valid inside its sessions.
        check(rejected >= sent["rollouts_socket"] - sent["in_session"], f"{rejected} refused", failures)
        check(last["weight_requests"] >= sent["weights_socket"], "requests on the weights socket are missing", failures)
        check(last["granted_samples"] == last["popped"] == last["accepted"] - last["of_other_starts"],
              "the good worker's rollouts", failures)
        check(last["wrong"] == 0, "wrong or repeated rollouts", failures)
        check(last["peak_kib"] - before["rss_kib"] < GROWTH_KIB, "memory is not bounded", failures)
        return {"sent": sent, "memory_kib": {"before": before["rss_kib"], "peak": last["peak_kib"],
                                             "after": after["rss_kib"]},
                "good_rollouts": {"before": before["popped"], "during": after["popped"] - before["popped"],
                                  "in_all": last["popped"], "a_second_before": round(alone, 1),
                                  "a_second_during": round((after["popped"] - before["popped"]) /
                                                           (sent["seconds"] + SETTLE_S), 1)},
                "trainer": last, "rejected_in_all": rejected, "weight_rejected_in_all": weight_rejected}


def rank_zero(run_dir: pathlib.Path) -> int:
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                if str(run_dir) in words and words[1] == "train" and "RANK=0" in (
                        entry / "environ").read_bytes().decode().split("\0"):
                    return int(entry.name)
            except OSError:
                continue
    return 0


def train(ringside: str, folder: pathlib.Path, name: str, steps: int) -> tuple[subprocess.Popen, pathlib.Path]:
    run_dir = folder / name
    log = open(folder / f"{name}.log", "w")
    words = [ringside, "run", ROOT / "recipes/quickstart/grpo.yaml", "--run-dir", run_dir, "--steps", str(steps),
             f"model.path={folder / 'sft/checkpoint-final'}", f"data.train={folder / 'data/train.jsonl'}",
             "rollout.prompts_per_step=4", "rollout.group_size=16", "optimizer.learning_rate=1e-3",
             "optimizer.warmup_steps=0", "train.steps=100000"]
    return subprocess.Popen([str(word) for word in words], stdout=log, stderr=log), run_dir


def metrics(run_dir: pathlib.Path) -> list[dict]:
    path = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def differences(plain: list[dict], attacked: list[dict], again: list[dict]) -> tuple[list, list]:
    """Metrics that two undisturbed runs agree on, and of those the ones that differ in the attacked run."""
    same = [key for key in plain[0] if not key.startswith(OF_THE_BRIDGE) and
            all(a.get(key) == b.get(key) for a, b in zip(plain, again))]
    return same, [key for key in same if any(a.get(key) != b.get(key) for a, b in zip(plain, attacked))]


def attack_training(bench: str, ringside: str, messages: int, steps: int, failures: list) -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", folder / "data", "--sft", "2000",
                        "--train", "200", "--held-out", "20", "--test", "20"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([ringside, "train", ROOT / "recipes/quickstart/sft.yaml", "--run-dir", folder / "sft", "--steps",
                        "60", f"model.path={folder / 'data/model'}", f"data.sft={folder / 'data/sft.jsonl'}"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        undisturbed = []
        for word in ("plain", "again"):
            run, run_dir = train(ringside, folder, word, steps)
            check(run.wait(DEADLINE_S) == 0, f"{word} run", failures)
            undisturbed.append(metrics(run_dir))
        run, run_dir = train(ringside, folder, "attacked", steps)
        wait_for(lambda: len(metrics(run_dir)) >= 2, "the attacked run's first steps")
        pid = rank_zero(run_dir)
        before, first = memory_kib(pid), len(metrics(run_dir))
        sent = attack(bench, run_dir / "bridge/endpoint.json", messages, seed=2)
        last_hit = len(metrics(run_dir))
        after, peak = memory_kib(pid), memory_kib(pid, "VmHWM")
        check(run.poll() is None, "the run was over before the attack; more --steps", failures)
        status = run.wait(DEADLINE_S)
        log = (folder / "attacked.log").read_text(encoding="utf-8", errors="surrogateescape")
        check(status == 0, f"the attacked run ended with {status}:\n{log[-3000:]}", failures)
        check_sender(sent, failures)
        attacked = metrics(run_dir)
        check(len(attacked) == steps, f"{len(attacked)} of {steps} steps", failures)
        same, differ = differences(undisturbed[0], attacked, undisturbed[1])
        check(bool(same), "no metric repeats in undisturbed runs", failures)
        check(log.replace("\n", "").isprintable(),
              "hostile bytes in the log", failures)
        check(not differ, f"metrics that differ from the undisturbed run: {differ}", failures)
        check("killed" not in log, "a worker was lost or replaced", failures)
        check(peak - before < GROWTH_KIB, "memory is not bounded", failures)
        return {"sent": sent, "steps": len(attacked), "steps_under_attack": last_hit - first, "exit_status": status,
                "memory_kib": {"before": before, "peak": peak, "after": after},
                "metrics_compared": len(same), "metrics_that_differ": differ,
                "metrics_not_repeatable": sorted(key for key in set(undisturbed[0][0]) - set(same)
                                                 if not key.startswith(OF_THE_BRIDGE)),
                "bridge_at_the_end": {key: value for key, value in attacked[-1].items()
                                      if key.startswith(OF_THE_BRIDGE)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench")
    parser.add_argument("ringside")
    parser.add_argument("--messages", type=int, default=1_000_000, help="in all; half of them to each trainer")
    parser.add_argument("--steps", type=int, default=300, help="of the training run; it must outlast the attack")
    parser.add_argument("--only", choices=("bridge", "train"))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    failures, results = [], {"cores": os.cpu_count(), "messages": options.messages}
    half = options.messages // (1 if options.only else 2)
    if options.only != "train":
        results["bridge"] = attack_bridge(options.bench, half, failures)
    if options.only != "bridge":
        results["train"] = attack_training(options.bench, options.ringside, half, options.steps, failures)
    results["failures"] = failures
    text = json.dumps(results, indent=1) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
