"""GRPO steps of long documents at the sizes of published models: time, memory, and the same figures at each layout.

  document  one document of --document tokens through four layers of SmolLM2-135M (its own first four and its head), with
            recomputation and offloaded activations, bf16: memory of the process must stay below 16 GiB
  whole     a document of --whole tokens through all 30 layers on one rank, ring 2 and Ulysses 2, fp32: entropy and gradient
            norm must agree
  qwen3     a step of Qwen3-0.6B's shape with random weights in bf16
  table     tokens a second and memory of a rank at context parallelism 1, 2 and 4: a small step measured (ring and
            Ulysses, four layers), and the estimate of `ringside check` for Qwen3-0.6B, plotted

A step is one group of two recorded completions, one of all the tokens and one of sixteen, whose advantages are +1 and -1;
it includes forward, backward and the optimizer. SmolLM2 comes from recipes/smollm2/prepare.sh. 131,072 tokens of four
layers cost about 3e14 floating-point operations: an hour on two idle cores. Results are written after every run.

Usage: nice .env/oracle/bin/python tools/bench/long/pretrained_shapes.py [--parts document,whole,qwen3,table]
       [--document 131072] [--whole 16384] [--table 8192] [--model recipes/smollm2/model] [--out DIRECTORY]
Writes pretrained-shapes-DATE.json (and .svg of the table) there, by default tools/bench/results. Exits 1 when a figure is
outside its bound.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  after the backend is chosen
import psutil  # noqa: E402
import safetensors.torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/oracle"))
import long_documents  # noqa: E402
import ringside_cli  # noqa: E402

GIB = 1 << 30
LAYERS = 4
SAVING = ["model.recompute=selective", "model.offload_activations=true", "model.logit_chunk_mb=256"]
QWEN3 = ROOT / "configs/models/Qwen3-0.6B"


def layout(**axes: int) -> list[str]:
    ranks = axes.get("ring", 1) * axes.get("ulysses", 1)
    return [*ringside_cli.layout(**axes), f"train.threads={max(1, os.cpu_count() // ranks)}"]


def first_layers(model: pathlib.Path, folder: pathlib.Path, positions: int) -> pathlib.Path:
    """A directory of the model's first LAYERS layers, with room for `positions`."""
    folder.mkdir()
    config = json.loads((model / "config.json").read_text())
    config |= {"num_hidden_layers": LAYERS, "max_position_embeddings": max(positions, config["max_position_embeddings"])}
    (folder / "config.json").write_text(json.dumps(config))
    kept = re.compile(rf"model\.layers\.([{''.join(map(str, range(LAYERS)))}])\.|model\.(embed_tokens|norm)\.")
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    safetensors.torch.save_file({name: value for name, value in tensors.items() if kept.match(name)},
                                folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").symlink_to(model.resolve() / "tokenizer.json")
    return folder


def with_positions(model: pathlib.Path, folder: pathlib.Path, positions: int) -> pathlib.Path:
    """The model with room for `positions`; its weights are linked."""
    folder.mkdir()
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = max(positions, config["max_position_embeddings"])
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("model.safetensors", "tokenizer.json"):
        if (model / name).exists():
            (folder / name).symlink_to(model.resolve() / name)
    return folder


def write_rollouts(path: pathlib.Path, tokens: int, vocab: int) -> None:
    chooser = random.Random(3)
    prompt = [chooser.randrange(100, vocab) for _ in range(16)]
    lines = []
    for length, reward in ((tokens - len(prompt), 1.0), (16, 0.0)):
        ids = [chooser.randrange(100, vocab) for _ in range(length)]
        lines.append({"group_id": 0, "prompt_ids": prompt, "completion_ids": ids, "logprobs": [-10.0] * length,
                      "reward": reward, "finish_reason": "length"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Memory(threading.Thread):
    """Samples the resident memory of a process and its children until it ends."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self.peak_sum = self.peak_one = 0

    def run(self) -> None:
        while self._root.is_running() and self._root.status() != psutil.STATUS_ZOMBIE:
            sizes = []
            for process in [self._root, *self._root.children(recursive=True)]:
                try:
                    sizes.append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            self.peak_sum, self.peak_one = max(self.peak_sum, sum(sizes)), max(self.peak_one, *sizes, 0)
            time.sleep(0.1)


def step(folder: pathlib.Path, model: pathlib.Path, tokens: int, words: list[str]) -> dict:
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    write_rollouts(folder / "rollouts.jsonl", tokens, vocab)
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        command = [ringside_cli.executable(), "train", "--rollouts", folder / "rollouts.jsonl", "--steps", 1, "--run-dir",
                   run_dir, f"model.path={model}", "rollout.prompts_per_step=1", "rollout.group_size=2",
                   "rollout.max_prompt_tokens=16", f"rollout.max_completion_tokens={tokens}", "algorithm.preset=grpo",
                   f"train.tokens_per_micro_batch={tokens}", "checkpoint.every_minutes=0", "log.samples=0",
                   long_documents.WAIT, *words]
        process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        memory = Memory(process.pid)
        memory.start()
        output, _ = process.communicate(timeout=long_documents.HOURS)
        memory.join()
        if process.returncode != 0:
            raise RuntimeError(f"exit status {process.returncode}\n{output[-3000:]}")
        metrics = ringside_cli.read_steps(pathlib.Path(run_dir))[0]
    seconds = metrics["time/train"]
    return {"tokens": tokens, "entropy": metrics["entropy"], "grad_norm": metrics["grad_norm"], "seconds": round(seconds, 1),
            "tokens_per_second": round(tokens / seconds, 1), "peak_gib": round(memory.peak_sum / GIB, 2),
            "peak_of_a_process_gib": round(memory.peak_one / GIB, 2)}


def document(report, options, folder: pathlib.Path) -> None:
    model = first_layers(options.model, folder / "four", options.document)
    found = step(folder, model, options.document, [*layout(), *SAVING, "model.dtype=bfloat16"])
    report.add({"part": "document", "layout": "1 rank"} | found, {"peak_gib": 16})


def whole(report, options, folder: pathlib.Path) -> None:
    model = with_positions(options.model, folder / "whole", options.whole)
    first = None
    for name, axes in (("1 rank", {}), ("ring 2", {"ring": 2}), ("Ulysses 2", {"ulysses": 2})):
        run = {"part": "whole", "layout": name} | step(folder, model, options.whole,
                                                       [*layout(**axes), *SAVING, "model.dtype=float32"])
        bounds = {}
        for key in ("entropy", "grad_norm") if first else ():
            run[f"{key}_difference"], bounds[f"{key}_difference"] = long_documents.relative(run[key], first[key]), 1e-4
        first = first or run
        report.add(run, bounds)


def qwen3(report, options, folder: pathlib.Path) -> None:
    model = with_positions(QWEN3, folder / "qwen3", 0)
    (model / "tokenizer.json").symlink_to(options.model.resolve() / "tokenizer.json")  # ids are recorded: never read
    found = step(folder, model, 2048, [*layout(), *SAVING, "model.dtype=bfloat16", "model.init=random"])
    report.add({"part": "qwen3", "layout": "1 rank"} | found, {})


def estimate(model: pathlib.Path, data: pathlib.Path, tokens: int, axes: dict[str, int]) -> float:
    """GiB of a rank, as `ringside check` predicts them."""
    _, _, *cut = ringside_cli.layout(**axes)  # `check` starts no ranks
    text = ringside_cli.run("check", f"model.path={model}", "model.init=random", f"data.train={data}", *cut, *SAVING[:2],
                            "model.dtype=bfloat16", f"train.tokens_per_micro_batch={tokens}", "rollout.reward=length",
                            f"rollout.max_completion_tokens={tokens - 256}", "rollout.max_prompt_tokens=256",
                            "--memory", "1000GiB")
    value, unit = re.search(r"memory of a rank: about ([\d.]+) (MiB|GiB|TiB)", text).groups()
    return float(value) * {"MiB": 1 / 1024, "GiB": 1, "TiB": 1024}[unit]


def table(report, options, folder: pathlib.Path) -> None:
    model = first_layers(options.model, folder / "four", options.table)
    rows = []
    for name, axes in (("1", {}), ("ring 2", {"ring": 2}), ("Ulysses 2", {"ulysses": 2}), ("ring 4", {"ring": 4}),
                       ("ring 2 x Ulysses 2", {"ring": 2, "ulysses": 2})):
        run = {"part": "table", "layout": name} | step(folder, model, options.table,
                                                       [*layout(**axes), *SAVING[:1], "model.dtype=bfloat16"])
        rows.append(run)
        report.add(run, {})
    lengths = [8192, 32768, 131072]
    large = with_positions(QWEN3, folder / "qwen3", max(lengths))
    (large / "tokenizer.json").symlink_to(options.model.resolve() / "tokenizer.json")  # for the one prompt
    prompts = folder / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Say a word.", "answer": "word"}) + "\n")
    predicted = {ranks: [estimate(large, prompts, tokens, {"ring": ranks}) for tokens in lengths] for ranks in (1, 2, 4)}
    for ranks, values in predicted.items():
        report.add({"part": "table", "layout": f"estimate, Qwen3-0.6B, ring {ranks}", "tokens": lengths, "gib": values}, {})
    plot(rows, lengths, predicted, options.plot)


def plot(rows: list[dict], lengths: list[int], predicted: dict[int, list[float]], path: pathlib.Path) -> None:
    figure, (speed, memory, of_estimate) = plt.subplots(1, 3, figsize=(13, 3.6))
    names = [row["layout"] for row in rows]
    speed.bar(names, [row["tokens_per_second"] for row in rows])
    speed.set_title("tokens a second, measured")
    memory.bar(names, [row["peak_of_a_process_gib"] for row in rows])
    memory.set_title("GiB of the largest rank, measured")
    for axis in (speed, memory):
        axis.tick_params(axis="x", labelrotation=30)
    for ranks, values in predicted.items():
        of_estimate.plot(lengths, values, marker="o", label=f"{ranks} ranks")
    of_estimate.set(title="GiB of a rank, Qwen3-0.6B, estimate", xscale="log", yscale="log", xlabel="tokens")
    of_estimate.legend()
    figure.tight_layout()
    figure.savefig(path)


PARTS = {"document": document, "whole": whole, "qwen3": qwen3, "table": table}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--document", type=int, default=131_072)
    parser.add_argument("--whole", type=int, default=16_384)
    parser.add_argument("--table", type=int, default=8_192)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "recipes/smollm2/model")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tools/bench/results")
    options = parser.parse_args()
    parts = options.parts.split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"pretrained-shapes-{datetime.date.today()}.json"
    report = long_documents.Report(path, parts)
    options.plot = path.with_suffix(".svg")
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="ringside-shapes-") as name:
            PARTS[part](report, options, pathlib.Path(name))
    print("\n".join(report.failures) or "all figures within their bounds")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
