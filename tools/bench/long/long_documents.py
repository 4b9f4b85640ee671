"""One long document on one process, a ring of two, Ulysses over two, and an all-gather ring of two: the same figures?

  forward   log-probs of a document of --forward tokens under a narrow Qwen3 (hidden 256, 4 layers, random weights, YaRN)
  train     the same, and loss and gradient norm of one step of supervised fine-tuning, for a document of --train tokens
  wide      one layer at Qwen3-8B's widths (hidden 4096, 32/8 heads of 128, MLP 12288), 4,096 tokens, forward and backward
            in bf16, beside the same in fp32

The first two are in fp32. A query's softmax over n keys is summed in other blocks on every layout, so results differ by
rounding: a few times 2^-24 of the largest term of each sum, through four layers. TOLERANCE is the bound that the fp32
log-probs of short documents keep against transformers (tests/oracle/hf_logprobs.py); RELATIVE is for loss and gradient
norm, whose rounding averages out. The wide layer is held to BFLOAT16, relative: bf16 has 8 bits.

131,072 tokens cost about 1.8e13 multiply-adds a layout: a quarter of an hour on two idle cores, hours on busy ones.
Results are written after every run, so an interrupted script leaves what it has.

Usage: nice .env/oracle/bin/python tools/bench/long/long_documents.py [--parts forward,train,wide] [--forward 131072]
       [--train 32768] [--out DIRECTORY]
Writes long-DATE.json there (default: tools/bench/results). Exits 1 when a figure is outside its bound.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import resource
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/oracle"))

import ringside_cli
import tiny_models

TOLERANCE = 2e-4
RELATIVE = 1e-4
BFLOAT16 = 2e-2
ALONE = [*ringside_cli.layout(), "train.threads=2"]
RING = [*ringside_cli.layout(ring=2), "train.threads=1"]
LAYOUTS = {
    "1 process": ALONE,
    "ring 2": RING,
    "Ulysses 2": [*ringside_cli.layout(ulysses=2), "train.threads=1"],
    "all-gather 2": [*RING, "sp.ring_impl=all_gather"],
    "ring 2, gathered backward": [*RING, "sp.ring_backward=all_gather"],
}
# Scores cost as much per pair and head whatever a head's width: two wide heads take less time than four.
WIDE_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128}
WAIT = "parallel.collective_timeout_s=7200"
HOURS = 4 * 3600


def write_model(folder: pathlib.Path, **changes) -> pathlib.Path:
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": tiny_models.VOCAB,
        "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
        "eos_token_id": tiny_models.EOS, "pad_token_id": tiny_models.PAD,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 32.0,
                            "original_max_position_embeddings": 4096}} | changes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tiny_models.make_tokenizer().save_pretrained(folder)
    return folder


def draw_text(tokens: int) -> str:
    chooser = random.Random(11)
    return "".join(chr(chooser.randrange(0x21, 0x21 + tiny_models.VOCAB - 3)) for _ in range(tokens))


def timed(call) -> dict:
    """What the call returns, its seconds, and the largest process that was started since the script began."""
    start = time.monotonic()
    found = call()
    found["seconds"] = round(time.monotonic() - start, 1)
    found["largest_process_so_far_mib"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return found


def logprobs(folder: pathlib.Path, model: pathlib.Path, tokens: int, words: list[str]) -> dict:
    text = draw_text(tokens)
    (folder / "in.jsonl").write_text(json.dumps({"ids": [2 + ord(c) - 0x21 for c in text]}) + "\n")
    files = ["--model", model, "--input", folder / "in.jsonl", "--output", folder / "out.jsonl"]
    ringside_cli.run("logprobs", *files, *words, "model.init=random", "model.init_std=0.1", WAIT,
                     f"train.tokens_per_micro_batch={tokens}", timeout=HOURS)
    return {"logprobs": ringside_cli.read_lines(folder / "out.jsonl")[0]["logprobs"]}


def train(folder: pathlib.Path, model: pathlib.Path, tokens: int, words: list[str]) -> dict:
    text = draw_text(tokens - 1)  # the completion ends with an end-of-sequence token
    (folder / "sft.jsonl").write_text(json.dumps({"prompt": text[:16], "completion": text[16:]}) + "\n")
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        ringside_cli.run("train", "--steps", 1, "--run-dir", run_dir, *words, f"model.path={model}",
                         "model.init=random", "model.init_std=0.1", "algorithm.task=sft", "train.batch_size=1",
                         f"data.sft={folder / 'sft.jsonl'}", f"train.tokens_per_micro_batch={tokens}", WAIT,
                         timeout=HOURS)
        step = ringside_cli.read_lines(pathlib.Path(run_dir) / "metrics.jsonl")[0]
    return {key: step[key] for key in ("loss", "grad_norm")}


def worst(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def relative(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


class Report:
    """The results file, written whenever something is added. Keeps a day's earlier runs of other parts."""

    def __init__(self, path: pathlib.Path, parts: list[str]):
        self._path = path
        earlier = json.loads(path.read_text())["runs"] if path.exists() else []
        self.failures = []
        self._data = {"date": datetime.datetime.now().isoformat(timespec="minutes"),
                      "version": ringside_cli.run("--version").strip().splitlines()[0],
                      "cores": os.cpu_count(), "runs": [run for run in earlier if run["part"] not in parts]}

    def add(self, run: dict, bounds: dict) -> None:
        outside = [key for key, bound in bounds.items() if not run[key] <= bound]  # NaN is outside
        self.failures += [f"{run['part']}, {run['layout']}: {key} {run[key]}" for key in outside]
        self._data["runs"].append(run | {"bounds": bounds, "load": os.getloadavg()[0]})
        self._path.write_text(json.dumps(self._data, indent=1) + "\n")
        print(json.dumps(run), flush=True)


def narrow(part: str, tokens: int, report: Report, folder: pathlib.Path) -> None:
    model = write_model(folder / "narrow", **(WIDE_HEADS if part == "forward" else {}))
    first = None
    for name, words in LAYOUTS.items():
        if part == "forward" and name == "ring 2, gathered backward":
            continue
        run = timed(lambda: logprobs(folder, model, tokens, [*words, "model.dtype=float32"]))
        found = run.pop("logprobs")
        run = {"part": part, "layout": name, "tokens": tokens, "mean_logprob": sum(found) / len(found)} | run
        bounds = {}
        if part == "train":
            step = timed(lambda: train(folder, model, tokens, [*words, "model.dtype=float32"]))
            run |= {"loss": step["loss"], "grad_norm": step["grad_norm"], "train_seconds": step["seconds"]}
        if first is None:
            first = run | {"logprobs": found}
        else:
            run["logprob_difference"], bounds["logprob_difference"] = worst(found, first["logprobs"]), TOLERANCE
            for key in ("loss", "grad_norm") if part == "train" else ():
                run[f"{key}_difference"], bounds[f"{key}_difference"] = relative(run[key], first[key]), RELATIVE
        report.add(run, bounds)


def wide(report: Report, folder: pathlib.Path) -> None:
    model = write_model(folder / "wide", hidden_size=4096, intermediate_size=12288, num_hidden_layers=1,
                        num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960,
                        rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    exact = None
    for dtype in ("float32", "bfloat16"):
        step = timed(lambda: train(folder, model, 4096, [*ALONE, f"model.dtype={dtype}",
                                                         "model.init_std=0.02"]))
        run = {"part": "wide", "layout": f"1 process, {dtype}", "tokens": 4096} | step
        bounds = {}
        if exact is not None:
            for key in ("loss", "grad_norm"):
                run[f"{key}_difference"], bounds[f"{key}_difference"] = relative(step[key], exact[key]), BFLOAT16
        exact = exact or step
        report.add(run, bounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="train,wide,forward")
    parser.add_argument("--forward", type=int, default=131_072)
    parser.add_argument("--train", type=int, default=32_768)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tools/bench/results")
    options = parser.parse_args()
    parts = options.parts.split(",")
    report = Report(options.out / f"long-{datetime.date.today()}.json", parts)
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="ringside-long-") as name:
            if part == "wide":
                wide(report, pathlib.Path(name))
            else:
                narrow(part, getattr(options, part), report, pathlib.Path(name))
    print("\n".join(report.failures) or "all figures within their bounds")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
