"""`sp.virtual_ranks: 8`: eight virtual ranks give the same bits on 1, 2, 4 and 8 processes.

Guards every kernel and reduction being run at the virtual ranks' shapes, in one order, however many processes carry
them: softmax attention under each method, gated delta nets and experts. Compared byte by byte: log-probs, metrics (loss,
gradient norm, ...), the trained weights, and the optimizer's first moment, which with beta1 = 0 and no clipping is every
parameter's gradient of the last step. Two more runs must differ, or nothing was compared: one rank, and the other method.
--timings also shows the seconds of 8 ranks without the key.
"""

import json
import pathlib
import random
import sys
import tempfile
import time

import torch

import parity_layouts
import ringside_cli
import tiny_models

VIRTUAL = 8
METHODS = {
    "ulysses": ["parallel.ulysses_parallel_size=8"],
    "all-gather": ["parallel.ringattn_parallel_size=8", "sp.ring_impl=all_gather"],
    "p2p": ["parallel.ringattn_parallel_size=8"],
    "ring 2 x ulysses 4": ["parallel.ringattn_parallel_size=2", "parallel.ulysses_parallel_size=4"],
}
# Gated delta nets and experts, of which each rank holds some.
HYBRID = [
    "parallel.ringattn_parallel_size=2",
    "parallel.ulysses_parallel_size=2",
    "parallel.expert_parallel_size=2",
]
HYBRID_VIRTUAL = 4
STEPS, PROMPTS_PER_STEP, GROUP_SIZE = 2, 3, 4


def everything(folder: pathlib.Path, recipe: pathlib.Path, name: str, words: list[str]) -> tuple[dict[str, bytes], float]:
    """Log-probs and a trained run, as bytes by name, and the seconds of the training steps."""
    ringside_cli.run(
        "logprobs", "--model", folder / "model", "--input", folder / "in.jsonl", "--output", folder / "out.jsonl", *words
    )
    run_dir = folder / name
    ringside_cli.run(
        "train", recipe, "--rollouts", folder / "rollouts.jsonl", "--steps", STEPS, "--run-dir", run_dir, *words
    )
    steps = ringside_cli.read_steps(run_dir)
    found = {"logprobs": (folder / "out.jsonl").read_bytes()}
    found["metrics"] = json.dumps(parity_layouts.without_clocks(steps)).encode()
    for file in sorted(run_dir.rglob("*.safetensors")):
        found[file.name] = file.read_bytes()
    return found, sum(step["step_time"] for step in steps)


def differing(a: dict[str, bytes], b: dict[str, bytes]) -> list[str]:
    if a.keys() != b.keys():
        raise ValueError(f"runs left different files: {sorted(a)} and {sorted(b)}")
    return [name for name in a if a[name] != b[name]]


def record(folder: pathlib.Path, config) -> pathlib.Path:
    """Writes a model of this shape, its rollouts and documents to score; returns the recipe."""
    model = tiny_models.make_model(config, seed=5)
    tiny_models.save(model, folder / "model")
    tiny_models.record_rollouts(
        model, folder / "rollouts.jsonl", STEPS * PROMPTS_PER_STEP, GROUP_SIZE, seed=5, max_completion=60
    )
    chooser = random.Random(1)
    documents = [[chooser.randrange(tiny_models.VOCAB) for _ in range(n)] for n in (2, 5, 64, 200, 333)]
    (folder / "in.jsonl").write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in documents))
    return ringside_cli.write_grpo_recipe(folder, PROMPTS_PER_STEP, GROUP_SIZE, 300, beta1=0.0, max_grad_norm=0.0)


def compare(folder: pathlib.Path, recipe: pathlib.Path, method: str, layout: list[str], virtual: int,
            numbers: tuple[int, ...]) -> tuple[dict[str, bytes], int]:
    """What `layout` gives on the first number of processes, and how many other numbers give something else."""
    first, failures = None, 0
    for processes in numbers:
        words = ["--nproc", str(processes), *layout, f"sp.virtual_ranks={virtual}"]
        found, seconds = everything(folder, recipe, f"{method}-{processes}", words)
        first = first or found
        names = differing(found, first)
        failures += bool(names)
        print(
            f"{method:<18} on {processes} processes: {seconds:6.2f} s, "
            f"{'bit-equal: ' + ', '.join(found) if not names else 'DIFFERENT: ' + ', '.join(names)}",
            flush=True,
        )
    return first, failures


def main() -> int:
    timings = "--timings" in sys.argv[1:]
    torch.set_num_threads(1)
    failures = 0
    with tempfile.TemporaryDirectory() as folder_name, tempfile.TemporaryDirectory() as hybrid_name:
        folder, hybrid = pathlib.Path(folder_name), pathlib.Path(hybrid_name)
        recipe = record(folder, tiny_models.make_config("qwen3", heads=8, kv_heads=2, tied=False))
        plain, plain_seconds = everything(folder, recipe, "plain", ["--nproc", "1"])
        print(f"one rank, without virtual ranks: {plain_seconds:.2f} s of training steps")
        first_of = {}
        for method, layout in METHODS.items():
            numbers = (1, 2, 4, VIRTUAL) if method == "ulysses" else (1, VIRTUAL)
            first_of[method], different = compare(folder, recipe, method, layout, VIRTUAL, numbers)
            failures += different
            if timings:
                _, seconds = everything(folder, recipe, f"{method}-free", ["--nproc", "8", *layout])
                print(f"{method:<18} on 8 processes, without virtual ranks: {seconds:6.2f} s")
        for name, other in {"one rank": plain, "the other method": first_of["all-gather"]}.items():
            if other["metrics"] == first_of["ulysses"]["metrics"]:
                failures += 1
                print(f"{name} has the same metrics to the bit: the comparison sees nothing")
        recipe = record(hybrid, tiny_models.make_family("qwen3_next"))
        failures += compare(hybrid, recipe, "hybrid, experts", HYBRID, HYBRID_VIRTUAL, (1, HYBRID_VIRTUAL))[1]
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(status)
