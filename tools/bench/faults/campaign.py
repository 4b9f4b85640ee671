"""A seeded campaign of faults against the real program: many short runs, each struck, resumed and audited.

Usage: .env/oracle/bin/python tools/bench/faults/campaign.py [--quick] [--seed N] [--minutes 40] [--only SCENE]...
Writes faults-DATE.json to --out (default: tools/bench/results), prints a table of kinds, counts and findings, exits 1 when
there is a finding. README.md here says what each kind does and what the audit proves. Root, for a small file system of its
own (scene `disk`).
"""

import argparse
import collections
import concurrent.futures
import datetime
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import arrangements
import audit
import injectors
import judge
from scene import ROOT, Scene

FULL_DISK = ("No space left on device", "cannot write")  # what a trainer may say that dies of it
FIRST_FAULT_S = 0.5
EARLY = 0.2  # of the starts of a trainer are struck before it trains
MAX_PROCESSES = 4


class Budget:
    """Keeps the busy processes of all scenes at MAX_PROCESSES."""

    def __init__(self):
        self._free, self._changed = MAX_PROCESSES, threading.Condition()

    def take(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._free >= count)
            self._free -= count

    def give(self, count: int) -> None:
        with self._changed:
            self._free += count
            self._changed.notify_all()


def prepare(folder: pathlib.Path, binary: pathlib.Path) -> pathlib.Path:
    """Data, and a model that solves some prompts: rewards differ, so each step changes the weights."""
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", folder / "task", "--sft", "2000", "--train",
                    "2000", "--held-out", "20", "--test", "20"], **quiet)
    subprocess.run([binary, "train", ROOT / "recipes/quickstart/sft.yaml", "--run-dir", folder / "sft", "--steps", "60",
                    f"model.path={folder / 'task/model'}", f"data.sft={folder / 'task/sft.jsonl'}"], **quiet)
    data = folder / "data"
    data.mkdir()
    (folder / "sft/checkpoint-final").rename(data / "model")
    (folder / "task/train.jsonl").rename(data / "train.jsonl")
    return data


def make_scene(name: str, seed: int, folder: pathlib.Path, data: pathlib.Path, options) -> tuple:
    rng = random.Random(seed)
    arrangement = arrangements.ARRANGEMENTS[name]
    ranks, workers = (2 if rng.random() < 0.25 else 1), rng.choice((1, 1, 2))
    if arrangement.beside:
        ranks = workers = 1
    staleness, encoding = rng.choice((0, 0, 2)), rng.choice(("auto", "dense"))
    steps = arrangement.steps // 2 if options.quick else arrangement.steps
    scene = Scene(folder / f"{name}-{seed}", options.binary, data, rng, steps, ranks, workers, staleness, encoding)
    return scene, arrangement, rng


def plan_of(arrangement, rng: random.Random, share: float) -> list[str]:
    plan = [kind for kind, count in arrangement.faults.items() for _ in range(max(1, round(count * share)))]
    rng.shuffle(plan)
    return plan


def play(scene, tools, plan: list[str], gap_s: float, rng: random.Random, options) -> tuple[dict, list[str]]:
    """Strikes until the run is over. Returns what struck by kind, and the finding that it did not end."""
    counts, begin = collections.Counter(), time.monotonic()
    due, starts, awaited = begin + FIRST_FAULT_S, 0, None  # awaited: progress that the next fault waits to be passed
    while not scene.finished:
        now = time.monotonic()
        if options.stop.is_set():
            raise InterruptedError("asked to stop")
        if now - begin > options.deadline:
            said = "; ".join(f"{process.name}: {process.last_lines(2)}" for process in scene.processes())
            return counts, [f"stuck: not finished after {options.deadline:.0f} s, {len(plan)} faults before the end ({said})"]
        scene.tick()
        tools.later.run_due()
        if scene.trainer.starts > starts:
            starts = scene.trainer.starts
            awaited = None if rng.random() < EARLY else scene.progress()
        if awaited is not None and scene.progress() > awaited:
            due, awaited = now + rng.uniform(0, 2 * gap_s), None
        if plan and awaited is None and now >= due:
            struck = injectors.INJECTORS[plan[0]](scene, tools, rng)
            counts[plan[0]] += struck
            by_proxy = plan[0] in injectors.counted_by_proxies(tools)
            if struck or by_proxy:
                plan.pop(0)
            due = now + (rng.expovariate(1 / gap_s) if struck or by_proxy else 0.1)
        time.sleep(0.01)
    return counts, []


def run_scene(name: str, seed: int, folder: pathlib.Path, data: pathlib.Path, options) -> dict:
    scene, arrangement, rng = make_scene(name, seed, folder, data, options)
    cost = scene.ranks + scene.num_workers + arrangement.beside
    options.budget.take(cost)
    tools, begin, findings, facts = injectors.Tools(injectors.Later()), time.monotonic(), [], {}
    counts = collections.Counter()
    try:
        arrangement.set_up(scene, tools, rng)
        plan = plan_of(arrangement, rng, 0.4 if options.quick else 1.0)
        scene.start()
        counts, findings = play(scene, tools, plan, arrangement.gap_s, rng, options)
        tools.later.run_due(all_of_them=True)
        counts.update(injectors.counted_by_proxies(tools))
        ends = scene.end() if not findings else []
        full_disk = [end for end in ends if name == "disk" and end.startswith("trainer") and any(w in end for w in FULL_DISK)]
        facts["trainer died of a full disk, saying so"] = len(full_disk)
        findings += [f"died: {end}" for end in ends if end not in full_disk]
        if not any(finding.startswith("stuck") for finding in findings):
            more, seen = audit.audit(scene, tools.messages.acks if tools.messages else [], options.judge)
            findings += more
            facts.update(seen)
    except InterruptedError as error:
        findings.append(f"interrupted: {error}")
    except Exception:
        findings.append("broken: " + traceback.format_exc())
    finally:
        scene.kill_everything()
        kept = options.keep and findings and keep(scene, options.keep)
        tools.close()
        options.budget.give(cost)
    if not kept:
        shutil.rmtree(scene.folder, ignore_errors=True)
    result = {"scene": name, "seed": seed, "ranks": scene.ranks, "workers": scene.num_workers, "staleness": scene.staleness,
              "encoding": scene.encoding, "shared_memory": scene.shared_memory, "seconds": time.monotonic() - begin,
              "struck": dict(counts), "facts": facts, "findings": findings}
    print(f"{name:10} seed {seed}: {sum(counts.values()):3} faults in {result['seconds']:5.1f} s, "
          f"{facts.get('accepted', 0)} accepted, {facts.get('consumed', 0)} consumed, {len(findings)} findings", flush=True)
    for finding in findings[:8]:
        print(f"    {finding}", flush=True)
    return result


def keep(scene, target: pathlib.Path) -> bool:
    target.mkdir(parents=True, exist_ok=True)
    shutil.copytree(scene.folder, target / scene.folder.name, dirs_exist_ok=True)
    return False


def next_scene(results: list[dict], under_way: list[str], options) -> str | None:
    """The arrangement whose kinds lack most; nothing when all have enough."""
    counts = totals(results)
    names = options.only
    if options.quick:
        left = [name for name in names if name not in under_way + [result["scene"] for result in results]]
        return left[0] if left else None
    need = {}
    for name in names:
        arrangement = arrangements.ARRANGEMENTS[name]
        own = {kind: tried for kind, tried in arrangement.faults.items() if tried >= 3}
        promised = under_way.count(name)
        need[name] = max(options.each - counts[kind] - promised * tried for kind, tried in own.items())
    name = max(need, key=need.get)
    if need[name] > 0:
        return name
    if sum(counts.values()) >= options.total or under_way:
        return None
    return names[len(results) % len(names)]


def scenes_that_work(binary: pathlib.Path) -> list[str]:
    """Those on by default; without the scene `server` for a program that drives no servers."""
    drives_servers = "--server" in subprocess.run([binary, "rollout", "--help"], capture_output=True, text=True).stdout
    return [name for name, one in arrangements.ARRANGEMENTS.items()
            if one.by_default and (drives_servers or not one.beside)]


def totals(results: list[dict]) -> collections.Counter:
    counts = collections.Counter()
    for result in results:
        counts.update(result["struck"])
    return counts


def run_campaign(folder: pathlib.Path, options) -> list[dict]:
    data = options.data or prepare(folder, options.binary)
    results, begin, number = [], time.monotonic(), 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        under_way: dict[concurrent.futures.Future, str] = {}
        while True:
            while len(under_way) < 2 and not options.stop.is_set() and time.monotonic() - begin < options.minutes * 60:
                name = next_scene(results, list(under_way.values()), options)
                if name is None:
                    break
                seed = options.seed * 1000 + number
                under_way[pool.submit(run_scene, name, seed, folder, data, options)] = name
                number += 1
            if not under_way:
                return results
            done, _ = concurrent.futures.wait(under_way, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                del under_way[future]
                results.append(future.result())


def report(results: list[dict], seconds: float, options) -> int:
    counts, findings = totals(results), collections.defaultdict(list)
    for result in results:
        for finding in result["findings"]:
            findings[result["scene"]].append(finding)
    print(f"\n{'kind':20} {'count':>6}")
    for kind in sorted(counts):
        print(f"{kind:20} {counts[kind]:6}")
    print(f"{'total':20} {sum(counts.values()):6}  in {len(results)} runs, {seconds / 60:.1f} minutes")
    facts = collections.Counter()
    for result in results:
        for key, value in result["facts"].items():
            facts[key] = max(facts[key], value) if "difference" in key else facts[key] + value
    print(json.dumps(facts, indent=2))
    for name, texts in findings.items():
        kinds = collections.Counter(text.split(":", 1)[0] for text in texts)
        print(f"findings in {name}: {dict(kinds)}")
    stamp = datetime.datetime.now().strftime("%Y-%m-%dT%H%M")
    summary = {"date": stamp, "seed": options.seed, "seconds": seconds, "runs": len(results), "faults": dict(counts),
               "facts": facts, "findings": sum(map(len, findings.values())), "scenes": results}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"faults-{stamp}.json").write_text(json.dumps(summary, indent=1) + "\n")
    return 1 if findings or not results else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each scene once with fewer faults, about two minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=40, help="no scene is begun after so long")
    parser.add_argument("--each", type=int, default=40, help="faults of each kind")
    parser.add_argument("--total", type=int, default=500, help="faults in all")
    parser.add_argument("--deadline", type=float, default=240, help="seconds a run may take")
    parser.add_argument("--only", action="append", choices=list(arrangements.ARRANGEMENTS))
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/ringside", help="copied first")
    parser.add_argument("--data", type=pathlib.Path, help="folder with model/ and train.jsonl, instead of preparing them")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tools/bench/results")
    parser.add_argument("--keep", type=pathlib.Path, help="folder where runs with findings are kept")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    options.budget, options.stop = Budget(), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # scenes undo their mounts and end their processes
        signal.signal(number, lambda *_: options.stop.set())
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ringside-faults-") as name:
        folder = pathlib.Path(name)
        options.binary = pathlib.Path(shutil.copy(options.binary, folder / "ringside"))
        options.only = options.only or scenes_that_work(options.binary)
        options.judge = judge.Judge()
        results = run_campaign(folder, options)
        options.judge.close()
    return report(results, time.monotonic() - begin, options)


if __name__ == "__main__":
    sys.exit(main())
