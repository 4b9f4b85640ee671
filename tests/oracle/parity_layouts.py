"""One recorded rollout file trained at every layout, twice, and resumed at another: same numbers.

Guards the sequence-parallel and data-parallel gradient: a factor that depends on how the mesh
folds, a token counted twice or dropped at a shard's edge, or state that a checkpoint forgets, moves
a step's loss, KL, entropy or gradient norm.

The ranks of fp64 runs that nothing stops are processes, those of the others threads of one process.
"""

import math
import pathlib
import re
import sys
import tempfile

import torch

import ringside_cli
import tiny_models

STEPS, STOP_AFTER, PROMPTS_PER_STEP, GROUP_SIZE = 5, 3, 4, 4
FIELDS = ("loss", "kl", "entropy", "grad_norm")
# dtype: absolute, relative
BOUNDS = {"float32": (1e-6, 1e-5), "float64": (1e-12, 1e-10)}
LAYOUTS = {
    "ulysses 2": ringside_cli.layout(ulysses=2),
    "ring 2": ringside_cli.layout(ring=2),
    "ring 2 x ulysses 2": ringside_cli.layout(ring=2, ulysses=2),
    "dp 2": ringside_cli.layout(data=2),
}
# What two runs of the same computation may differ in: clocks and what is derived from them, and
# memory.
CLOCK = re.compile(r"time|second|_s$|_ms$|per_s|timestamp|eta|memory|rss")


def train(
    folder: pathlib.Path, name: str, dtype: str, layout: list[str], run, steps: int = STEPS
) -> list[dict]:
    """The metrics of each step of run `name`, continued if it stopped; a step's last line counts."""
    recipe = ringside_cli.write_grpo_recipe(folder, PROMPTS_PER_STEP, GROUP_SIZE, 200)
    run_dir = folder / f"{name}-{dtype}".replace(" ", "-")
    run(
        "train",
        recipe,
        "--rollouts",
        folder / "rollouts.jsonl",
        "--steps",
        steps,
        "--run-dir",
        run_dir,
        f"model.dtype={dtype}",
        *layout,
    )
    by_step = {line["step"]: line for line in ringside_cli.read_steps(run_dir)}
    if sorted(by_step) != list(range(1, steps + 1)):
        raise ValueError(
            f"{run_dir}/metrics.jsonl has steps {sorted(by_step)}, expected 1 to {steps}"
        )
    return [by_step[step] for step in range(1, steps + 1)]


def compare(name: str, dtype: str, got: list[dict], expected: list[dict]) -> int:
    """Prints each field's largest |difference| / bound of any step; returns how many exceed 1."""
    absolute, relative = BOUNDS[dtype]
    row, failures = f"{dtype:<9}{name:<34}", 0
    for field in FIELDS:
        used = [
            abs(mine[field] - other[field]) / (absolute + relative * abs(other[field]))
            for mine, other in zip(got, expected, strict=True)
        ]
        worst = math.nan if any(map(math.isnan, used)) else max(used)
        failures += not worst <= 1
        row += f"{field} {worst:8.4f}{'     ' if worst <= 1 else ' FAIL'}  "
    print(row)
    return failures


def without_clocks(value):
    if isinstance(value, dict):
        return {key: without_clocks(item) for key, item in value.items() if not CLOCK.search(key)}
    return [without_clocks(item) for item in value] if isinstance(value, list) else value


def check_dtype(folder: pathlib.Path, dtype: str) -> int:
    in_memory = ringside_cli.run_in_memory
    run = ringside_cli.run if dtype == "float64" else in_memory
    single = train(folder, "single", dtype, ringside_cli.layout(), run)
    failures = 0
    for name, layout in LAYOUTS.items():
        failures += compare(name, dtype, train(folder, name, dtype, layout, run), single)
    for name, layout in {"1": ringside_cli.layout(), "ring 2": LAYOUTS["ring 2"]}.items():
        first, second = (
            without_clocks(train(folder, f"{turn}-{name}", dtype, layout, run))
            for turn in ("first", "second")
        )
        failures += first != second
        print(
            f"{dtype:<9}{'repeated at ' + name:<34}"
            f"{'bit-equal' if first == second else 'DIFFERENT  FAIL'}"
        )
    for before, after in [("ulysses 2", "ring 2"), ("ring 2 x ulysses 2", "dp 2")]:
        name = f"{before} then {after}"
        train(folder, name, dtype, LAYOUTS[before], in_memory, steps=STOP_AFTER)
        resumed = train(folder, name, dtype, LAYOUTS[after], in_memory)
        failures += compare(name, dtype, resumed[STOP_AFTER:], single[STOP_AFTER:])
    return failures


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder_name:
        folder = pathlib.Path(folder_name)
        model = tiny_models.make_model(
            tiny_models.make_config("qwen3", heads=4, kv_heads=2, tied=True), seed=11
        )
        tiny_models.save(model, folder / "model")
        tiny_models.record_rollouts(
            model,
            folder / "rollouts.jsonl",
            STEPS * PROMPTS_PER_STEP,
            GROUP_SIZE,
            seed=11,
            max_completion=60,
        )
        print("largest |difference| as a share of the bound; bounds (absolute, relative):", BOUNDS)
        failures = sum(check_dtype(folder, dtype) for dtype in BOUNDS)
    print(f"{failures} comparisons outside their bounds")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
