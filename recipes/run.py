"""Runs a small CPU recipe from data to figures: data, warm start, training, the test set before and after, curve.

Usage: recipes/run.py NAME [OVERLAY ...] [--seed N] [--ringside FILE]
    NAME      a folder of recipes/ with make_data.py, sft.yaml and grpo.yaml; with teacher.yaml a teacher is trained first
    OVERLAY   files of that folder, without .yaml, that are merged over grpo.yaml: `arithmetic ppo`

Writes runs/NAME/{data,sft,teacher} once, and runs/NAME/<grpo or overlays>/ with summary.json and curve.svg; what a recipe's
folder holds of these is a copy. Exits 1 if the mean reward on the test set rises by less than 0.25. Standard library only.
"""
import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WIDTH, HEIGHT, MARGIN = 480, 220, 36
WANTED_GAIN = 0.25


def run(*words) -> str:
    print("$", *(word.relative_to(ROOT) if isinstance(word, pathlib.Path) and word.is_relative_to(ROOT) else word
                 for word in words), flush=True)
    return subprocess.run([str(word) for word in words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextlib.contextmanager
def reward_server(folder: pathlib.Path):
    """Runs the folder's reward_server.py, if it has one."""
    script = folder / "reward_server.py"
    if not script.exists():
        yield
        return
    server = subprocess.Popen([sys.executable, script])
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def test_score(ringside, model: pathlib.Path, test: pathlib.Path, recipe: list) -> float:
    """Mean reward of greedy completions of the test prompts."""
    return json.loads(run(ringside, "generate", "--model", model, "--input", test, "--output", model.parent / "test.jsonl",
                          *recipe).splitlines()[-1])["mean"]


def smoothed(values: list[float], width: int = 5) -> list[float]:
    return [sum(part) / len(part) for part in (values[max(0, i - width + 1):i + 1] for i in range(len(values)))]


def curve_svg(title: str, rewards: list[float]) -> str:
    low, high = min(0.0, *rewards), max(1.0, *rewards)

    def place(i: int, value: float) -> str:
        x = MARGIN + i * (WIDTH - 2 * MARGIN) / max(1, len(rewards) - 1)
        return f"{x:.1f},{HEIGHT - MARGIN - (value - low) / (high - low) * (HEIGHT - 2 * MARGIN):.1f}"

    def line(values: list[float], style: str) -> str:
        return f'<polyline fill="none" {style} points="{" ".join(place(i, v) for i, v in enumerate(values))}"/>'

    def text(x: float, y: float, words: str) -> str:
        return f'<text x="{x}" y="{y}" font-size="12" font-family="sans-serif" fill="#555">{words}</text>'

    bottom = HEIGHT - MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<path d="M{MARGIN} {MARGIN} V{bottom} H{WIDTH - MARGIN}" fill="none" stroke="#999"/>',
        line(rewards, 'stroke="#9bc" stroke-width="1"'), line(smoothed(rewards), 'stroke="#16a" stroke-width="2"'),
        text(MARGIN, 20, title), text(6, MARGIN + 4, f"{high:g}"), text(6, bottom, f"{low:g}"),
        text(MARGIN, HEIGHT - 12, "step 1"), text(WIDTH - MARGIN - 50, HEIGHT - 12, f"step {len(rewards)}"), "</svg>"]) + "\n"


def prepare(ringside, folder: pathlib.Path, data: pathlib.Path, seed: int) -> pathlib.Path:
    """Data and warm start, unless they are there; returns the model of the warm start."""
    warm, teacher = data.parent / "sft", data.parent / "teacher"
    if not (warm / "checkpoint-final").exists():
        run(sys.executable, folder / "make_data.py", "--out", data, "--seed", seed)
        run(ringside, "train", folder / "sft.yaml", "--run-dir", warm, f"seed={seed}", f"model.path={data}/model",
            f"data.sft={data}/sft.jsonl")
    if (folder / "teacher.yaml").exists() and not (teacher / "checkpoint-final").exists():
        run(ringside, "train", folder / "teacher.yaml", "--run-dir", teacher, f"seed={seed}",
            f"model.path={data}/teacher_model", f"data.sft={data}/teacher.jsonl")
    return warm / "checkpoint-final"


def teacher_words(recipe: list[pathlib.Path], base: pathlib.Path) -> list[str]:
    wanted = any("distillation: {teacher:" in path.read_text() for path in recipe)
    return [f"algorithm.distillation.teacher={base}/teacher/checkpoint-final"] if wanted else []


def shown_reward(step: dict) -> float:
    """Of a step: the reward that it learned from, or the one that only shows (algorithm.reward.scale 0)."""
    alone = [value for name, value in step.items() if name.startswith("rewards/") and name.endswith("/mean")]
    return alone[0] if "distillation/kl" in step and len(alone) == 1 else step["reward"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("overlays", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ringside", type=pathlib.Path, default=ROOT / "build" / "ringside")
    options = parser.parse_args()
    folder = ROOT / "recipes" / options.name
    base = ROOT / "runs" / (options.name if options.seed == 1 else f"{options.name}-seed{options.seed}")
    label = "+".join(options.overlays) or "grpo"
    out, data = base / label, base / "data"
    recipe = [folder / f"{name}.yaml" for name in ["grpo", *options.overlays]]
    shutil.rmtree(out, ignore_errors=True)
    with reward_server(folder):
        warm = prepare(options.ringside, folder, data, options.seed)
        before = test_score(options.ringside, warm, data / "test.jsonl", recipe)
        started = time.monotonic()
        run(options.ringside, "run", *recipe, "--run-dir", out, f"seed={options.seed}", f"model.path={warm}",
            f"data.train={data}/train.jsonl", f"data.eval={data}/held_out.jsonl", *teacher_words(recipe, base))
        seconds = time.monotonic() - started
        after = test_score(options.ringside, out / "checkpoint-final", data / "test.jsonl", recipe)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    held_out = [[line["step"], round(line["eval_reward"], 3)] for line in lines if "eval_reward" in line]
    steps = [line for line in lines if "reward" in line]  # the first line may be an evaluation before training
    rewards = [shown_reward(step) for step in steps]
    summary = {"recipe": options.name, "files": [path.name for path in recipe], "seed": options.seed,
               "test_before": before, "test_after": after, "seconds": round(seconds, 1),
               "reward": [round(value, 4) for value in rewards], "held_out": held_out}
    (out / "summary.json").write_text(json.dumps(summary) + "\n")
    (out / "curve.svg").write_text(curve_svg(f"{options.name}, {label}, seed {options.seed}: reward in training", rewards))
    print(f"{options.name} {label}: mean reward on the test set {before:.3f} before, {after:.3f} after {len(steps)} "
          f"steps in {seconds:.0f} s; {out.relative_to(ROOT)}/curve.svg")
    return 0 if after - before >= WANTED_GAIN else 1


if __name__ == "__main__":
    sys.exit(main())
