"""Runs one of the tasks on SmolLM2-135M from data to figures: data, warm start, the test set before, GRPO, after, curve.

Usage: recipes/smollm2/run.py TASK [--seed N] [--ringside FILE] [key.sub=value ...]
    TASK   reverse_words, instructions or preference: a folder with make_data.py and grpo.yaml, perhaps sft.yaml
    key.sub=value   overrides of grpo.yaml, such as train.steps=10 eval.max_prompts=20

Writes runs/smollm2/TASK[-seedN]/: data, sft, grpo, summary.json and curve.svg. The figures are of one completion of each
test prompt at the recipe's eval.temperature (default 0: greedy). Exits 1 unless the mean rises above the upper end of its 95 % interval before. prepare.sh comes first.
Standard library only.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import run as small_recipes  # noqa: E402

ROOT = small_recipes.ROOT
FOLDER = ROOT / "recipes" / "smollm2"
PYTHON = pathlib.Path(os.environ.get("SMOLLM2_PYTHON", ROOT / ".env" / "smollm2" / "bin" / "python"))


def run(*words) -> str:
    return small_recipes.run(*words)


@contextlib.contextmanager
def reward_model(folder: pathlib.Path, data: pathlib.Path):
    """Trains and serves the folder's reward model, if it has one."""
    script = folder / "reward_model.py"
    if not script.exists():
        yield
        return
    print(run(PYTHON, script, "train", data / "pairs.jsonl", data / "reward_model.npz"), end="")
    server = subprocess.Popen([PYTHON, script, "serve", data / "reward_model.npz"])
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def judged_by(folder: pathlib.Path) -> list[str]:
    """Overrides for the final figure, where another judge than the reward decides."""
    judge = folder / "judge.py"
    return [f"rollout.reward=python({judge}:judged)"] if judge.exists() else []


def figures(ringside, model: pathlib.Path, data: pathlib.Path, words: list, output: pathlib.Path) -> dict:
    """Mean reward and pass@1 on the test set with intervals, at the recipe's eval.temperature."""
    text = run(ringside, "eval", model, data / "test.jsonl", *words, "eval.samples=1", "--output", output)
    return json.loads(text.splitlines()[-1])


def curve(run_dir: pathlib.Path) -> dict:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "reward" in line]
    return {"reward": [round(line["reward"], 4) for line in steps],
            "eval": [[line["step"], round(line["eval_reward"], 4)] for line in lines if "eval_reward" in line],
            "entropy": [round(line["entropy"], 3) for line in steps],
            "k3_kl": [float(f"{line['rollout_corr/k3_kl']:.2g}") for line in steps]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["reverse_words", "instructions", "preference"])
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ringside", type=pathlib.Path, default=ROOT / "build" / "ringside")
    options = parser.parse_intermixed_args()
    folder = FOLDER / options.task
    base = ROOT / "runs" / "smollm2" / (options.task if options.seed == 1 else f"{options.task}-seed{options.seed}")
    data, out, start = base / "data", base / "grpo", FOLDER / "model"
    shutil.rmtree(out, ignore_errors=True)
    run(PYTHON, folder / "make_data.py", "--out", data, "--seed", options.seed)
    seconds = {}

    def timed(name: str, *words) -> None:
        began = time.monotonic()
        run(*words)
        seconds[name] = round(time.monotonic() - began)

    words = [folder / "grpo.yaml", f"data.train={data}/train.jsonl", f"data.eval={data}/held_out.jsonl"]
    if "verify.py" in {path.name for path in folder.iterdir()}:
        words.append(f"rollout.reward_options.python_command={PYTHON}")
    with reward_model(folder, data):
        if (folder / "sft.yaml").exists():
            if not (base / "sft" / "checkpoint-final").exists():
                timed("sft", options.ringside, "train", folder / "sft.yaml", "--run-dir", base / "sft",
                      f"seed={options.seed}", f"data.sft={data}/sft.jsonl")
            start = base / "sft" / "checkpoint-final"
        judge = [*words, *options.overrides, *judged_by(folder)]
        before = figures(options.ringside, start, data, judge, base / "before.jsonl")
        timed("grpo", options.ringside, "run", *words, "--run-dir", out, f"seed={options.seed}", f"model.path={start}",
              *options.overrides)
        after = figures(options.ringside, out / "checkpoint-final", data, judge, base / "after.jsonl")
    shown = curve(out)
    summary = {"task": options.task, "seed": options.seed, "overrides": options.overrides, "seconds": seconds,
               "before": before, "after": after, **shown}
    (base / "summary.json").write_text(json.dumps(summary) + "\n")
    title = f"SmolLM2-135M, {options.task}, seed {options.seed}: reward in training"
    (base / "curve.svg").write_text(small_recipes.curve_svg(title, shown["reward"]))
    gained = after["reward"]["mean"] > before["reward"]["high"]
    print(f"{options.task}: mean reward on the test set {before['reward']['mean']:.3f} before, {after['reward']['mean']:.3f} "
          f"after {len(shown['reward'])} steps in {seconds['grpo']} s (pass@1 {before['pass@1']['mean']:.3f}, "
          f"{after['pass@1']['mean']:.3f}); {base.relative_to(ROOT)}/curve.svg")
    return 0 if gained else 1


if __name__ == "__main__":
    sys.exit(main())
