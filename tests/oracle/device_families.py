"""Every family on a CUDA device beside the CPU: log-probs, greedy completions, and three steps of training.

Guards operators that CUDA lacks or computes otherwise: windows, sinks, latent attention, experts, delta nets, adapters,
packed weights, critics, offload and Muon, none of which a CPU can show. In fp32 log-probs, metrics and final weights must be
the CPU's but for rounding, and greedy completions its tokens. In bf16 the device's log-probs may be at most a few times as
far from fp32's as the CPU's bf16 ones, and so a step's gradient norm.

Usage: device_families.py --ringside RINGSIDE_CUDA [--device cuda|cpu] [--jobs N] [--models DIR] [NAME...]
Prints a row a family; exits non-zero when one is outside. --device cpu compares the CPU with itself: a check of this script.
--models: where the models are kept, or made when they are missing, for machines whose transformers cannot make them all.
Needs torch, transformers and safetensors in this Python.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import safetensors.torch
import torch

import tiny_models

PLAIN = ("qwen3", "qwen2", "llama", "qwen3_moe")
ALL = (*PLAIN, *tiny_models.FAMILIES, *tiny_models.MORE_FAMILIES)
STEPS = 3
LOGPROBS, METRICS, WEIGHTS = 2e-4, 2e-3, 2e-5  # fp32: absolute, relative, relative to a tensor's length
BFLOAT16_MULTIPLE = 3.0
METRIC_KEYS = ("loss", "grad_norm", "critic/grad_norm", "kl")
# Kinds of run that one dense model is trained with, beside plain GRPO with a reference.
KINDS = {
    "ppo with a critic": ["algorithm.preset=ppo", "algorithm.num_iterations=2"],
    "gspo": ["algorithm.preset=gspo", "train.num_mini_batches=2"],
    "adapters": ["lora.rank=4", "optimizer.learning_rate=1e-4"],
    "adapters over nf4": ["lora.rank=4", "lora.base=nf4", "optimizer.learning_rate=1e-4"],
    "adapters over int8": ["lora.rank=4", "lora.base=int8", "optimizer.learning_rate=1e-4"],
    "muon": ["optimizer.kind=muon"],
    "recomputed in tiles, offloaded": ["model.recompute=full", "model.mlp_tile_tokens=5", "model.offload_activations=true"],
    "recomputed without attention": ["model.recompute=selective"],
    "optimizer on the host": ["optimizer.offload=full"],
    "weights on the host": ["model.offload_parameters=true", "optimizer.offload=full"],
}
# Kinds for a model with experts.
EXPERT_KINDS = {
    "adapters on experts": ["lora.rank=2", "lora.target_modules=q_proj, v_proj, experts.down_proj", "optimizer.learning_rate=1e-4"],
    "routes recomputed": ["algorithm.router_replay=recompute", "train.num_mini_batches=2"],
    "balanced": ["model.router_aux_loss_coef=0.01"],
}


def draw_ids(chooser: random.Random, count: int) -> list[int]:
    return [chooser.randrange(2, tiny_models.VOCAB) for _ in range(count)]


def write_data(folder: pathlib.Path) -> None:
    chooser = random.Random(3)
    lines = [{"ids": draw_ids(chooser, length)} for length in (2, 3, 17, 64, 65, 300)]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rollouts = []
    for group in range(2 * STEPS):
        prompt = draw_ids(chooser, 5 + group)
        for _ in range(4):
            completion = draw_ids(chooser, chooser.randint(3, 30))
            rollouts.append(dict(group_id=group, prompt_ids=prompt, completion_ids=completion, finish_reason="length",
                                 logprobs=[-math.log(tiny_models.VOCAB)] * len(completion), reward=chooser.random()))
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(rollout) + "\n" for rollout in rollouts))
    prompts = [{"prompt": "".join(chr(0x21 + chooser.randrange(40)) for _ in range(n)), "answer": ""} for n in (3, 9, 20)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))


class Program:
    """Runs the commands of one model on one device."""

    def __init__(self, ringside: pathlib.Path, folder: pathlib.Path):
        self._ringside, self._folder = ringside, folder
        self._trained = {}

    def run(self, words: list, device: str, dtype: str) -> None:
        command = [self._ringside, *words, f"model.device={device}", f"model.dtype={dtype}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=200,
                              env=os.environ | {"OMP_NUM_THREADS": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}),
                              check=False)
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-6:])
            raise RuntimeError(f"{words[0]} on {device} in {dtype}: exit status {done.returncode}\n{tail}")

    def logprobs(self, device: str, dtype: str = "float32") -> torch.Tensor:
        output = self._folder / f"logprobs-{device}-{dtype}.jsonl"
        files = ["--model", self._folder / "model", "--input", self._folder / "in.jsonl", "--output", output]
        self.run(["logprobs", *files], device, dtype)
        return torch.tensor([x for line in read_lines(output) for x in line["logprobs"]], dtype=torch.float64)

    def completions(self, device: str) -> list[str]:
        output = self._folder / f"completions-{device}.jsonl"
        files = ["--model", self._folder / "model", "--input", self._folder / "prompts.jsonl", "--output", output]
        self.run(["generate", *files, "eval.temperature=0", "rollout.max_completion_tokens=24"], device, "float32")
        return [line["completion"] for line in read_lines(output)]

    def train(self, device: str, words: list[str], dtype: str = "float32") -> tuple[list[dict], dict[str, torch.Tensor]]:
        """Metrics of the steps, and the final weights or adapters. The same training is run once."""
        key = (device, tuple(words), dtype)
        if key not in self._trained:
            self._trained[key] = self._train(device, words, dtype)
        return self._trained[key]

    def _train(self, device: str, words: list[str], dtype: str) -> tuple[list[dict], dict[str, torch.Tensor]]:
        run_dir = pathlib.Path(tempfile.mkdtemp(dir=self._folder))
        self.run(["train", f"model.path={self._folder / 'model'}", "--rollouts", self._folder / "rollouts.jsonl", "--steps",
                  STEPS, "--run-dir", run_dir, "rollout.prompts_per_step=2", "rollout.group_size=4", "algorithm.kl_coef=0.05",
                  "train.tokens_per_micro_batch=128", "optimizer.warmup_steps=0", "train.threads=1", *words], device, dtype)
        weights = {}
        for file in sorted((run_dir / "checkpoint-final").glob("*.safetensors")):
            weights |= safetensors.torch.load_file(file)
        return read_lines(run_dir / "metrics.jsonl"), weights


def read_lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def relative(found: float, expected: float) -> float:
    return abs(found - expected) / max(1e-2, abs(expected))


def compare_training(program: Program, device: str, words: list[str]) -> list[str]:
    """What is outside, in words."""
    (expected, weights), (found, found_weights) = program.train("cpu", words), program.train(device, words)
    outside = []
    if len(expected) != STEPS or len(found) != STEPS:
        return [f"{len(expected)} and {len(found)} steps"]
    for step, (a, b) in enumerate(zip(expected, found, strict=True), 1):
        for key in METRIC_KEYS:
            if key in a and not relative(b[key], a[key]) <= METRICS:
                outside.append(f"{key} of step {step}: {b[key]:.6g}, on the CPU {a[key]:.6g}")
    for name, tensor in weights.items():
        distance = (found_weights[name].double() - tensor.double()).norm() / tensor.double().norm().clamp(min=1e-9)
        if not distance <= WEIGHTS:
            outside.append(f"{name}: {distance:.1e} of its length")
    return outside[:4]


def compare_bfloat16(program: Program, device: str, exact: torch.Tensor) -> list[str]:
    ours, theirs = ((program.logprobs(d, "bfloat16") - exact).abs().mean().item() for d in (device, "cpu"))
    outside = [] if ours <= BFLOAT16_MULTIPLE * theirs else [f"bf16 log-probs {ours:.1e} from fp32, the CPU's {theirs:.1e}"]
    norm, on_cpu, on_device = (program.train(d, [], dtype)[0][0]["grad_norm"]
                               for d, dtype in (("cpu", "float32"), ("cpu", "bfloat16"), (device, "bfloat16")))
    if not abs(on_device - norm) <= BFLOAT16_MULTIPLE * abs(on_cpu - norm) + 0.03 * norm:
        outside.append(f"bf16 gradient norm {on_device:.4g}, the CPU's {on_cpu:.4g}, in fp32 {norm:.4g}")
    return outside


def compare_forward(program: Program, device: str, expected: torch.Tensor) -> list[str]:
    distance = (program.logprobs(device) - expected).abs().max().item()
    outside = [] if distance <= LOGPROBS else [f"log-probs differ by {distance:.1e}"]
    texts, found = program.completions("cpu"), program.completions(device)
    if texts != found:
        outside.append(f"{sum(a != b for a, b in zip(texts, found))} of {len(texts)} greedy completions differ")
    return outside


def make_model(name: str, folder: pathlib.Path) -> None:
    """Makes the family's model, whole or not at all."""
    config = tiny_models.make_config(name, 4, 2, False) if name in PLAIN else tiny_models.make_family(name)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        tiny_models.save(tiny_models.make_model(config, 3, std=0.1), pathlib.Path(unfinished) / "model")
        (pathlib.Path(unfinished) / "model").rename(folder)


def check_family(name: str, models: pathlib.Path, ringside: pathlib.Path, device: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder_name:
        folder = pathlib.Path(folder_name)
        (folder / "model").symlink_to(models / name)
        write_data(folder)
        program = Program(ringside, folder)
        expected = program.logprobs("cpu")
        checks = {"forward": lambda: compare_forward(program, device, expected),
                  "training": lambda: compare_training(program, device, []),
                  "bf16": lambda: compare_bfloat16(program, device, expected)}
        kinds = KINDS if name == "qwen3" else EXPERT_KINDS if name == "qwen3_moe" else {}
        for kind, words in kinds.items():
            checks[kind] = lambda words=words: compare_training(program, device, words)
        outside = []
        for what, check in checks.items():
            try:
                outside += [f"{what}: {text}" for text in check()]
            except (RuntimeError, subprocess.TimeoutExpired, KeyError) as error:
                outside.append(f"{what}: {error}")
        return outside


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ringside", type=pathlib.Path, required=True, help="ringside_cuda")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="models at a time")
    parser.add_argument("--models", type=pathlib.Path, help="default: made for this run alone")
    parser.add_argument("names", nargs="*", help="families; default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.names or ALL
    unknown = [name for name in names if name not in ALL]
    if unknown:
        parser.error(f"no family '{unknown[0]}'; expected {', '.join(ALL)}")
    failures = 0
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        models = (options.models or pathlib.Path(temporary)).resolve()
        for name in names:
            if not (models / name).exists():
                make_model(name, models / name)
        running = {pool.submit(check_family, name, models, options.ringside.absolute(), options.device): name
                   for name in names}
        for future in concurrent.futures.as_completed(running):
            outside = future.result()
            failures += bool(outside)
            print(f"{running[future]}: {'; '.join(outside) or 'as on the CPU'}", flush=True)
    print(f"{failures} of {len(names)} families differ on {options.device}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
