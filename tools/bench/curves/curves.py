"""Whether sequence parallelism and asynchrony change what is learnt, drawn as curves.

  recorded      500 steps of GRPO over one recorded order of rollouts, on one rank and on two: the losses side by side.
                A third run, on one rank with micro-batches of 48 tokens, sums the same terms in another order and
                shares nothing with sequence parallelism: how far it parts from the first is the dtype's rounding alone.
  reproducible  the same with `sp.virtual_ranks: 2`: two virtual ranks in one process, and in two. Every figure of every
                update is to be equal to the bit, in any dtype.
  sft           the three runs of `recorded`, of supervised fine-tuning on arithmetic. Its loss has the size of the
                log-probs and does not cross zero, as GRPO's does, so that a relative difference says something at
                every step.
  live          the quickstart task for three seeds: one rank, two ranks, and asynchronously with rollouts up to four
                versions old (one rank, truncated importance sampling): training reward and exact match on the test
                set.

Usage: .env/oracle/bin/python tools/bench/curves/curves.py recorded|reproducible|sft|live [--out DIRECTORY]
       [--seeds 1,2,3] [--steps N] [--dtype float32|bfloat16|float64]
Writes curves-WHAT[-DTYPE]-DATE.json and .png there (default: tools/bench/results) and exits 1 when the curves part:
losses by more than 1 % in an optimizer step (reproducible: any figure by a bit), final rewards by more than two
standard errors.
"""

import argparse
import datetime
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/oracle"))

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import ringside_cli
import tiny_models

FINAL_STEPS = 20  # the last steps' mean training reward is the final reward
RECORDED_GROUPS, PROMPTS_PER_STEP, GROUP_SIZE = 48, 4, 4
TOKENS_PER_MICRO_BATCH, SMALL_MICRO_BATCH = 4096, 48
TWO_RANKS = ringside_cli.layout(ulysses=2)
LIVE_RUNS = {
    "1 rank": ringside_cli.layout(),
    "2 ranks, Ulysses": TWO_RANKS,
    "asynchronous, staleness 4": [
        *ringside_cli.layout(),
        "algorithm.max_staleness=4",
        "algorithm.correction.mode=tis",
        "algorithm.correction.high=2",
    ],
}


VIRTUAL_RANKS = [*TWO_RANKS[2:], "sp.virtual_ranks=2"]
REPRODUCIBLE_RUNS = {"1": ["--nproc", "1", *VIRTUAL_RANKS], "2": ["--nproc", "2", *VIRTUAL_RANKS]}


def make_model(folder: pathlib.Path):
    model = tiny_models.make_model(tiny_models.make_config("qwen3", heads=4, kv_heads=2, tied=True, layers=2), 3)
    tiny_models.save(model, folder / "model")
    return model


def recorded(steps: int, _seeds: list[int], dtype: str) -> tuple[dict, bool]:
    """GRPO's losses; the file of rollouts is repeated until there are `steps`."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        return side_by_side(folder, recorded_grpo(folder), three_runs(), steps, dtype)


def reproducible(steps: int, _seeds: list[int], dtype: str) -> tuple[dict, bool]:
    """The same on two virtual ranks in one process and in two."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        result, _ = side_by_side(folder, recorded_grpo(folder), REPRODUCIBLE_RUNS, steps, dtype)
        return result, result["curves"]["1"] == result["curves"]["2"]


def recorded_grpo(folder: pathlib.Path) -> list:
    model = make_model(folder)
    tiny_models.record_rollouts(model, folder / "rollouts.jsonl", RECORDED_GROUPS, GROUP_SIZE, 3)
    recipe = ringside_cli.write_grpo_recipe(folder, PROMPTS_PER_STEP, GROUP_SIZE, TOKENS_PER_MICRO_BATCH,
                                            learning_rate=1e-5)
    return [recipe, "--rollouts", folder / "rollouts.jsonl"]


def sft(steps: int, _seeds: list[int], dtype: str) -> tuple[dict, bool]:
    """The losses of fine-tuning on products of two numbers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_model(folder)
        pairs = itertools.product(range(2, 60), repeat=2)
        products = [{"prompt": f"{a} times {b} is ", "completion": str(a * b)} for a, b in pairs]
        (folder / "sft.jsonl").write_text("".join(json.dumps(product) + "\n" for product in products))
        words = ["algorithm.task=sft", f"model.path={folder / 'model'}", f"data.sft={folder / 'sft.jsonl'}",
                 "train.batch_size=16", f"train.tokens_per_micro_batch={TOKENS_PER_MICRO_BATCH}",
                 "optimizer.learning_rate=1e-4"]
        return side_by_side(folder, words, three_runs(), steps, dtype)


def three_runs() -> dict[str, list[str]]:
    shorter = [*ringside_cli.layout(), f"train.tokens_per_micro_batch={SMALL_MICRO_BATCH}"]
    return {"1": ringside_cli.layout(), "2": TWO_RANKS, f"1, micro-batches of {SMALL_MICRO_BATCH} tokens": shorter}


def side_by_side(folder: pathlib.Path, words: list, layouts: dict, steps: int, dtype: str) -> tuple[dict, bool]:
    """The curves of one training run on each of the layouts, and how far they part from that of the first."""
    curves = {}
    for ranks, layout in layouts.items():
        run_dir = folder / f"run{len(curves)}"
        ringside_cli.run("train", *words, "--steps", steps, "--run-dir", run_dir, *layout, f"model.dtype={dtype}",
                         timeout=3600)
        updates = [u for step in ringside_cli.read_steps(run_dir) for u in step.get("updates", [step])]
        keys = [key for key in ("loss", "kl", "entropy", "grad_norm") if any(u.get(key) for u in updates)]
        curves[ranks] = {key: [u[key] for u in updates] for key in keys}
    differences = {name: compare(curves["1"], curves[name]) for name in list(curves)[1:]}
    for name, found in differences.items():
        for key, parts in found.items():
            print(f"{name} beside 1, {key}:", {what: f"{x:.2e}" for what, x in parts.items()})
    passed = differences["2"]["loss"]["largest_relative"] <= 0.01
    return {"steps": steps, "dtype": dtype, "differences": differences, "curves": curves}, passed


def compare(one: dict, other: dict) -> dict:
    """Of every curve: the largest relative difference of an optimizer step, the share of steps above 1 %, and the mean
    difference over the curve's root mean square, which a loss that crosses zero does not inflate."""
    found = {}
    for key in one:
        pairs = list(zip(one[key], other[key], strict=True))
        relative = [abs(a - b) / max(abs(a), 1e-12) for a, b in pairs]
        size = math.sqrt(sum(a * a for a, _ in pairs) / len(pairs))
        found[key] = {"largest_relative": max(relative),
                      "share_above_1_percent": sum(r > 0.01 for r in relative) / len(pairs),
                      "mean_of_size": sum(abs(a - b) for a, b in pairs) / len(pairs) / max(size, 1e-12)}
    return found


def warm_start(folder: pathlib.Path, seed: int) -> pathlib.Path:
    task = ["python3", "tools/quickstart_task.py", "--out", folder / "data", "--variant", "short", "--flawed"]
    subprocess.run([*map(str, task), "--seed", str(seed)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    words = [f"seed={seed}", f"model.path={folder}/data/model", f"data.sft={folder}/data/sft.jsonl"]
    recipe = ROOT / "recipes/quickstart/sft.yaml"
    ringside_cli.run("train", recipe, "--run-dir", folder / "sft", *words, *TWO_RANKS, timeout=1800)
    return folder / "sft/checkpoint-final"


def exact_match(model: pathlib.Path, folder: pathlib.Path) -> float:
    words = ["--model", model, "--input", folder / "data/test.jsonl", "--output", folder / "test.jsonl"]
    output = ringside_cli.run("generate", *words, ROOT / "recipes/quickstart/grpo.yaml", timeout=600)
    return json.loads(output[output.rindex("{") :])["mean"]


def live_run(folder: pathlib.Path, start: pathlib.Path, name: str, seed: int, steps: int, dtype: str) -> dict:
    run_dir = folder / name.replace(" ", "-").replace(",", "")
    words = [f"seed={seed}", f"model.path={start}", f"data.train={folder}/data/train.jsonl", f"train.steps={steps}"]
    words.append(f"model.dtype={dtype}")
    # `run` starts the worker beside as many trainer ranks as the layout asks for.
    layout = LIVE_RUNS[name][2:]
    ringside_cli.run(
        "run", ROOT / "recipes/quickstart/grpo.yaml", "--run-dir", run_dir, *words, *layout, timeout=3600
    )
    lines = ringside_cli.read_steps(run_dir)
    reward = [line["reward"] for line in lines]
    result = {
        "run": name,
        "seed": seed,
        "reward": reward,
        "final_reward": sum(reward[-FINAL_STEPS:]) / FINAL_STEPS,
        "staleness": max(line["staleness/max"] for line in lines),
        "dropped_stale": lines[-1]["rollouts/dropped_stale"],
        "step_time": sorted(line["step_time"] for line in lines)[len(lines) // 2],
        "exact_match": exact_match(run_dir / "checkpoint-final", folder),
    }
    print({key: value for key, value in result.items() if key != "reward"}, flush=True)
    return result


def live(steps: int, seeds: list[int], dtype: str) -> tuple[dict, bool]:
    runs = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            start = warm_start(folder, seed)
            runs += [live_run(folder, start, run, seed, steps, dtype) for run in LIVE_RUNS]
    finals = {name: [r["final_reward"] for r in runs if r["run"] == name] for name in LIVE_RUNS}
    mean = {name: sum(values) / len(values) for name, values in finals.items()}
    spread = {
        name: sum((v - mean[name]) ** 2 for v in values) / max(1, len(values) - 1) / len(values)
        for name, values in finals.items()
    }
    base = "1 rank"
    distances = {
        name: abs(mean[name] - mean[base]) / math.sqrt(max(1e-12, spread[name] + spread[base]))
        for name in LIVE_RUNS
        if name != base
    }
    print("final rewards:", mean, "distance from one rank in standard errors:", distances)
    return {"steps": steps, "final": mean, "standard_errors": distances, "runs": runs}, max(distances.values()) <= 2


def draw(what: str, result: dict, path: pathlib.Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5))
    if what != "live":
        one, two = result["curves"]["1"], result["curves"]["2"]
        axes[0].plot(one["loss"], label="1 rank")
        axes[0].plot(two["loss"], "--", label="2 ranks, Ulysses")
        axes[0].set(title="loss over one order of the data", xlabel="optimizer step")
        for name, other in list(result["curves"].items())[1:]:
            differences = [abs(a - b) / max(abs(a), 1e-12) for a, b in zip(one["loss"], other["loss"], strict=True)]
            axes[1].plot(differences, label=name, alpha=0.7)
            if any(differences):
                axes[1].set_yscale("log")
        axes[1].legend()
        axes[1].set(title="relative difference of the losses", xlabel="optimizer step")
    else:
        for name, colour in zip(LIVE_RUNS, ("C0", "C1", "C2"), strict=True):
            rewards = [run["reward"] for run in result["runs"] if run["run"] == name]
            mean = [sum(step) / len(step) for step in zip(*rewards, strict=True)]
            smooth = [sum(mean[max(0, i - 9) : i + 1]) / len(mean[max(0, i - 9) : i + 1]) for i in range(len(mean))]
            axes[0].plot(smooth, colour, label=name)
            matches = [run["exact_match"] for run in result["runs"] if run["run"] == name]
            axes[1].plot([name] * len(matches), matches, colour + "o" if len(colour) == 1 else "o", color=colour)
        axes[0].set(title="training reward, mean of the seeds over ten steps", xlabel="step")
        axes[1].set(title="greedy exact match on the test set, a dot a seed", ylim=(0, 1))
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["recorded", "reproducible", "sft", "live"])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tools/bench/results")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=0, help="default: 100 live, else 500")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"], help="model.dtype")
    options = parser.parse_args()
    steps = options.steps or (100 if options.what == "live" else 500)
    measure = {"recorded": recorded, "reproducible": reproducible, "sft": sft, "live": live}[options.what]
    result, passed = measure(steps, [int(seed) for seed in options.seeds.split(",")], options.dtype)
    options.out.mkdir(parents=True, exist_ok=True)
    what = options.what if options.dtype == "float32" else f"{options.what}-{options.dtype}"
    stem = options.out / f"curves-{what}-{datetime.date.today()}"
    stem.with_suffix(".json").write_text(json.dumps(result) + "\n")
    draw(options.what, result, stem.with_suffix(".png"))
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
