"""Trains the two adapters and draws both curves: runs/two_adapters/curve-carry.svg and curve-no_carry.svg.

Usage: recipes/two_adapters/run.py [--ringside FILE]. Needs runs/arithmetic/sft (recipes/arithmetic). Standard library only.
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "recipes"))
import run as recipe_run  # noqa: E402

ADAPTERS = ("carry", "no_carry")
SHOWN = 10  # steps at either end, of which the mean is printed
WANTED = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ringside", type=pathlib.Path, default=ROOT / "build" / "ringside")
    options = parser.parse_args()
    folder, base = ROOT / "recipes/two_adapters", ROOT / "runs/two_adapters"
    recipe_run.run(sys.executable, folder / "make_data.py", "--out", base / "data")
    recipe_run.run(options.ringside, "run", folder / "grpo.yaml", "--run-dir", base / "grpo")
    steps = [json.loads(line) for line in (base / "grpo/metrics.jsonl").read_text().splitlines()]
    learned = True
    for name in ADAPTERS:
        rewards = [step[f"adapter/{name}/reward"] for step in steps]
        first, last = (sum(part) / len(part) for part in (rewards[:SHOWN], rewards[-SHOWN:]))
        print(f"{name}: mean reward {first:.3f} in the first {SHOWN} steps, {last:.3f} in the last")
        (base / f"curve-{name}.svg").write_text(recipe_run.curve_svg(f"two_adapters, {name}: reward in training", rewards))
        learned = learned and last >= WANTED
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
