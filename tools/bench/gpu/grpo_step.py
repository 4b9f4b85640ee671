"""One GRPO step of a Qwen3 of 0.6B parameters on a GPU: `ringside train` beside transformers.

Both sides train the same random weights on the same 8192 tokens (one group of 8 completions of
equal length, so that neither pads), with bf16 compute over fp32 master weights: forward, policy
gradient loss, backward, clipping, AdamW. Nothing is generated. Prints JSON to stdout. MFU counts 6
FLOPs per token and weight of a matrix product, and attention's products below the diagonal, against
the GPU's dense bf16 peak; what is computed twice counts once.

For long context: --document TOKENS --group N, and --recompute, which is model.recompute=full beside
transformers' gradient checkpointing. A side that runs out of memory is said to.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch
import transformers

PROMPT_TOKENS = 64
LEARNING_RATE, MAX_GRAD_NORM = 1e-6, 1.0
# Dense bf16 TFLOP/s, from the vendor's data sheets.
PEAKS = {"A100": 312.0, "H100 PCIe": 756.0, "H100": 989.0, "H200": 989.0}


@dataclasses.dataclass(frozen=True)
class Shape:
    """The model's shape, Qwen3-0.6B's, and the tokens of a step."""

    hidden: int = 1024
    layers: int = 28
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 3072
    vocab: int = 151936
    document: int = 1024  # tokens of a prompt and its completion
    group: int = 8  # completions of the prompt

    @property
    def tokens(self) -> int:
        return self.group * self.document

    @property
    def flops(self) -> float:
        """Of a step: a backward pass costs two forward passes."""
        heads = (2 * self.heads + 2 * self.kv_heads) * self.head_dim * self.hidden
        weights = self.layers * (heads + 3 * self.hidden * self.intermediate)
        weights += self.hidden * self.vocab
        pairs = self.group * self.document * (self.document + 1) / 2
        attention = 12 * pairs * self.heads * self.head_dim * self.layers
        return 6 * weights * self.tokens + attention


SMALL = Shape(64, 2, 4, 2, 16, 128, 512)


class DevicePeak:
    """Within it, the most memory that the driver says is in use on the first GPU; asked ten times a second."""

    def __init__(self):
        self.bytes = None
        self._stop = threading.Event()

    def _watch(self):
        ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        while not self._stop.wait(0.1):
            used = int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout) << 20
            self.bytes = max(self.bytes or 0, used)

    def __enter__(self):
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def write_model(shape: Shape, folder: pathlib.Path) -> int:
    """Writes a model of random weights as a Hugging Face directory; returns its parameters."""
    config = transformers.Qwen3Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        max_position_embeddings=max(4096, shape.document),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return model.num_parameters()


def make_rollouts(shape: Shape) -> list[dict]:
    """One group: a prompt and GROUP_SIZE random completions with random rewards."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(2, shape.vocab, (PROMPT_TOKENS,), generator=generator).tolist()
    length = shape.document - PROMPT_TOKENS
    rollouts = []
    for _ in range(shape.group):
        completion = torch.randint(2, shape.vocab, (length,), generator=generator).tolist()
        reward = torch.rand(1, generator=generator).item()
        rollouts.append(
            dict(
                group_id=0,
                prompt_ids=prompt,
                completion_ids=completion,
                logprobs=[-math.log(shape.vocab)] * length,
                reward=reward,
                finish_reason="length",
            )
        )
    return rollouts


def run_ours(folder: pathlib.Path, shape: Shape, options: argparse.Namespace) -> dict:
    words = {
        "model.path": folder / "model",
        "model.dtype": "bfloat16",
        "model.device": options.device,
        "rollout.prompts_per_step": 1,
        "rollout.group_size": shape.group,
        "rollout.max_completion_tokens": shape.document,
        "algorithm.preset": "grpo",
        "algorithm.kl_coef": 0,
        "optimizer.learning_rate": LEARNING_RATE,
        "optimizer.lr_schedule": "constant",
        "optimizer.max_grad_norm": MAX_GRAD_NORM,
        "train.tokens_per_micro_batch": shape.tokens,
        "sp.shared_prefix": "false",  # transformers computes every prompt, too
        "model.recompute": "full" if options.recompute else "none",
    }
    if options.device == "cpu":
        del words["model.device"]
    command = [options.ringside, "train", *(f"{key}={value}" for key, value in words.items())]
    command += f"--rollouts {folder}/rollouts.jsonl --run-dir {folder}/run --steps {options.steps}".split()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"exit status {done.returncode} of {command}\n{done.stdout}{done.stderr}")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    return dict(
        seconds=[step["step_time"] for step in steps],
        grad_norm=[step["grad_norm"] for step in steps],
    )


def run_transformers(folder: pathlib.Path, rollouts: list[dict], options: argparse.Namespace) -> dict:
    device = options.device
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model.to(device).train()
    if options.recompute:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0, fused=True)
    rows = [rollout["prompt_ids"] + rollout["completion_ids"] for rollout in rollouts]
    ids = torch.tensor(rows, device=device)
    rewards = torch.tensor([rollout["reward"] for rollout in rollouts], device=device)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    first = PROMPT_TOKENS - 1  # scores the first token of the completion
    seconds, norms = [], []
    for _ in range(options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ids[:, :-1]).logits[:, first:]
        targets = ids[:, first + 1 :]
        logps = -torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), reduction="none"
        ).view_as(targets)
        ratio = (logps - logps.detach()).exp()
        loss = -(ratio * advantages[:, None]).mean()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM).item())
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return dict(seconds=seconds, grad_norm=norms)


def measured(run, on_gpu: bool) -> dict:
    """What `run` returns with its peak of the device's memory, or that it had too little."""
    try:
        if not on_gpu:
            return run()
        with DevicePeak() as peak:
            side = run()
        return side | dict(peak_bytes=peak.bytes)
    except torch.OutOfMemoryError as error:
        return dict(out_of_memory=str(error).split(". ")[0])


def peak_tflops(options: argparse.Namespace) -> float | None:
    if options.peak_tflops or options.device == "cpu":
        return options.peak_tflops
    name = torch.cuda.get_device_name()
    return next((peak for key, peak in PEAKS.items() if key in name), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ringside", type=pathlib.Path, required=True, help="ringside_cuda")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny shape, to check the script")
    parser.add_argument("--document", type=int, help="tokens of a prompt and its completion")
    parser.add_argument("--group", type=int, default=8, help="completions of the prompt")
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--recompute", action="store_true", help="layers are computed again in the backward")
    parser.add_argument("--steps", type=int, default=8, help="of which the first three eighths are not counted")
    parser.add_argument("--peak-tflops", type=float, help="dense bf16 peak of a GPU not in PEAKS")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("grpo_step: torch sees no CUDA device", file=sys.stderr)
        return 1
    shape = dataclasses.replace(SMALL if options.small else Shape(), group=options.group,
                                document=options.document or (96 if options.small else 1024))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        parameters = write_model(shape, folder / "model")
        rollouts = make_rollouts(shape)
        lines = "".join(json.dumps(rollout) + "\n" for rollout in rollouts)
        (folder / "rollouts.jsonl").write_text(lines)
        # First ours, in a process of its own: the GPU is empty again when transformers starts.
        on_gpu = options.device == "cuda"
        sides = {"ringside": measured(lambda: run_ours(folder, shape, options), on_gpu)}
        if not options.alone:
            sides["transformers"] = measured(lambda: run_transformers(folder, rollouts, options), on_gpu)
    peak = peak_tflops(options)
    for side in sides.values():
        if "seconds" not in side:
            continue
        side["median_seconds"] = statistics.median(side["seconds"][3 * options.steps // 8 :])
        side["tokens_per_second"] = shape.tokens / side["median_seconds"]
        side["tflops"] = shape.flops / side["median_seconds"] / 1e12
        side["mfu"] = side["tflops"] / peak if peak else None
    record = dict(shape=dataclasses.asdict(shape), parameters=parameters, tokens=shape.tokens,
                  recompute=options.recompute)
    record |= dict(peak_tflops=peak, transformers=transformers.__version__, sides=sides)
    if len(sides) == 2 and all("seconds" in side for side in sides.values()):
        ours, theirs = (sides[name]["grad_norm"][0] for name in ("ringside", "transformers"))
        record["grad_norm_off_by"] = abs(ours / theirs - 1)
    print(json.dumps(record, indent=1))
    if record.get("grad_norm_off_by", 0.0) > 0.05:
        print("grpo_step: the sides' first gradient norms differ: not the same work", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
