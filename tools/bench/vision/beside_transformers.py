"""A step of supervised fine-tuning on images: `ringside train` beside transformers' Qwen3-VL.

Both train the same random weights in fp32 by AdamW, with the gradient clipped at 1, on the same images and texts and with as
many threads. A step has 16 samples with an image each, of mixed sizes that no processor changes; none comes twice. Ours is
packed; theirs is one batch padded to its longest sample, with sdpa; its patches are made before the clock starts, while our
step reads and cuts its own. Losses and gradient norms must agree on every step to within 1e-3 of their size.

Each repetition is a process of each side, one after the other: a step to warm up, then --steps. Reported: the median over all
timed steps of a side, and the ratio's range over the repetitions. Other load on the machine delays one side and not the other,
and threads that wait for a delayed one wait busily, so where there is load, take --threads 1 and the ratio of CPU time.

Usage: beside_transformers.py [--ringside PROGRAM] [--repetitions N] [--steps N] [--threads N] [--small] [--save]
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

import psutil
import torch
import transformers

_ROOT = pathlib.Path(__file__).resolve().parents[3]
for _folder in ("recipes/vision", "tests/oracle"):
    sys.path.insert(0, str(_ROOT / _folder))
import make_data  # noqa: E402  (found through the lines above)
import ringside_cli  # noqa: E402
import vision_training  # noqa: E402

SAMPLES, PROMPT_CHARACTERS, ANSWER_CHARACTERS = 16, (10, 60), (20, 340)
SIZES = ((224, 160), (224, 224), (256, 192), (320, 224), (320, 320), (384, 256), (448, 320))
PATCH, TEMPORAL, MERGE = 16, 2, 2
LEARNING_RATE, MAX_GRAD_NORM, BETAS, EPS = 1e-4, 1.0, (0.9, 0.999), 1e-8
RELATIVE = 1e-3  # of loss and gradient norm
CASES = ("trained", "frozen")  # the tower
CHARACTERS = "".join(chr(0x4E00 + i) for i in range(8192 - 3 - 4))  # of a vocabulary of 8,192 single characters


def write_model(folder: pathlib.Path, small: bool) -> int:
    """A Qwen3-VL of random weights, its tokenizer and image processor; returns its parameters."""
    text = make_data.text
    folder.mkdir(parents=True)
    vocabulary = text.vocabulary_of(CHARACTERS)
    special = (make_data.START, make_data.END, make_data.IMAGE, make_data.VIDEO)
    for token in special:
        vocabulary[token] = len(vocabulary)
    tokenizer = text.tokenizer_json(vocabulary)
    tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "id": vocabulary[token], "content": token}
                                  for token in special]
    config = make_data.model_config(vocabulary)
    layers = 2 if small else 6
    config["text_config"] |= {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": layers, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 8, 8],
                            "mrope_interleaved": True}}
    config["vision_config"] |= {
        "depth": layers, "hidden_size": 384, "intermediate_size": 1536, "num_heads": 6, "patch_size": PATCH,
        "temporal_patch_size": TEMPORAL, "spatial_merge_size": MERGE, "out_hidden_size": 512,
        "num_position_embeddings": 24 * 24, "deepstack_visual_indexes": [1 if small else 2]}
    torch.manual_seed(0)
    model = transformers.Qwen3VLForConditionalGeneration(
        transformers.Qwen3VLConfig(**{key: value for key, value in config.items() if key != "architectures"}))
    model.save_pretrained(folder)
    text.write_json(folder / "tokenizer.json", tokenizer)
    text.write_json(folder / "tokenizer_config.json", text.tokenizer_config())
    text.write_json(folder / "preprocessor_config.json", {
        "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": PATCH, "temporal_patch_size": TEMPORAL,
        "merge_size": MERGE, "size": {"shortest_edge": 1024, "longest_edge": 1 << 22}, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3})
    return model.num_parameters()


def write_samples(folder: pathlib.Path, steps: int) -> None:
    """Writes FOLDER/sft.jsonl, SAMPLES lines a step, and the images it names."""
    rng = random.Random(0)
    (folder / "images").mkdir()
    lines = []
    for sample in range(steps * SAMPLES):
        width, height = SIZES[sample % len(SIZES)]
        # Noise in blocks, so that a PNG compresses about as a picture does.
        row = [bytes(rng.randrange(256) for _ in range(3)) * 4 for _ in range(width // 4)]
        pixels = [b"".join(row[(x + y // 4 * 7) % len(row)] for x in range(len(row))) for y in range(height)]
        path = f"images/{sample}.png"
        (folder / path).write_bytes(make_data.png(pixels))
        asked, answered = ("".join(rng.choices(CHARACTERS, k=rng.randint(*length)))
                           for length in (PROMPT_CHARACTERS, ANSWER_CHARACTERS))
        lines.append({"prompt": make_data.PROMPT[:-len("squares:")] + asked, "image": path,
                      "completion": answered + make_data.text.EOS})
    make_data.text.write_lines(folder / "sft.jsonl", lines)


def batch_of(folder: pathlib.Path, step: int) -> dict:
    """What a data loader gives to transformers' model: SAMPLES samples, padded on the right."""
    vocabulary = json.loads((folder / "model/tokenizer.json").read_text())["model"]["vocab"]
    image_id, begin_length = vocabulary[make_data.IMAGE], len(make_data.START + make_data.IMAGE + make_data.END)
    rows, labels, patches, grids = [], [], [], []
    for line in ringside_cli.read_lines(folder / "sft.jsonl")[step * SAMPLES:][:SAMPLES]:
        pixels = vision_training.pixels_of((folder / line["image"]).read_bytes())
        patches.append(vision_training.patches_of(pixels, PATCH, TEMPORAL, MERGE))
        grids.append([1, pixels.shape[1] // PATCH, pixels.shape[2] // PATCH])
        prompt = [vocabulary[make_data.START], *[image_id] * (len(patches[-1]) // MERGE**2), vocabulary[make_data.END]]
        prompt += [vocabulary[c] for c in line["prompt"][begin_length:]]
        completion = [vocabulary[c] for c in line["completion"]]
        rows.append(torch.tensor(prompt + completion))
        labels.append(torch.tensor([-100] * len(prompt) + completion))
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=vocabulary[make_data.text.PAD])
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
            "labels": torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100),
            "mm_token_type_ids": (ids == image_id).long(), "pixel_values": torch.cat(patches),
            "image_grid_thw": torch.tensor(grids)}


def print_transformers(folder: pathlib.Path, case: str, steps: int, threads: int) -> None:
    """The body of transformers' process: a line of JSON with its steps."""
    torch.set_num_threads(threads)
    model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
        folder / "model", dtype=torch.float32, attn_implementation="sdpa").train()
    model.config.text_config.use_cache = False
    model.model.visual.requires_grad_(case == "trained")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, BETAS, EPS, weight_decay=0.0)
    done = []
    for step in range(steps):
        batch = batch_of(folder, step)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        done.append({"loss": loss.item(), "grad_norm": norm.item(), "seconds": time.perf_counter() - begin,
                     "cpu_s": time.process_time() - cpu_begin, "positions": batch["input_ids"].numel(),
                     "tokens": int(batch["attention_mask"].sum()), "patches": len(batch["pixel_values"])})
    print(json.dumps(done))


def run_ours(folder: pathlib.Path, case: str, steps: int, options: argparse.Namespace) -> list[dict]:
    words = {
        "model.path": folder / "model", "model.vision": case, "data.sft": folder / "sft.jsonl", "data.image_key": "image",
        "data.shuffle": "false", "algorithm.task": "sft", "train.steps": steps, "train.batch_size": SAMPLES,
        "train.tokens_per_micro_batch": options.tokens_per_micro_batch, "train.threads": options.threads,
        "optimizer.learning_rate": LEARNING_RATE, "optimizer.lr_schedule": "constant", "optimizer.warmup_steps": 0,
        "optimizer.weight_decay": 0.0, "optimizer.max_grad_norm": MAX_GRAD_NORM, "optimizer.beta1": BETAS[0],
        "optimizer.beta2": BETAS[1], "optimizer.eps": EPS, "checkpoint.every_minutes": 0, "log.progress": "lines"}
    with tempfile.TemporaryDirectory() as run:
        command = [options.ringside, "train", "--run-dir", f"{run}/run", *(f"{k}={v}" for k, v in words.items())]
        ends = cpu_at_steps([str(word) for word in command], pathlib.Path(run) / "run/metrics.jsonl", options.threads)
        lines = ringside_cli.read_steps(pathlib.Path(run) / "run")
    if len(ends) != len(lines):
        raise RuntimeError(f"saw the ends of {len(ends)} steps of {len(lines)}")
    return [{"loss": line["loss"], "grad_norm": line["grad_norm"], "seconds": line["step_time"], "cpu_s": end - begin,
             "tokens": int(line["num_tokens"])} for line, begin, end in zip(lines, [0.0, *ends], ends)]


def cpu_at_steps(command: list[str], metrics: pathlib.Path, threads: int) -> list[float]:
    """Runs `command`; returns the CPU seconds it had used when each step's line came into `metrics`."""
    ends, used = [], 0.0
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
        try:
            while process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                    times = psutil.Process(process.pid).cpu_times()
                    used = times.user + times.system
                lines = metrics.read_text().splitlines() if metrics.exists() else []
                steps = sum('"loss"' in line for line in lines)
                ends += [used] * (steps - len(ends))
                time.sleep(0.01)
        finally:
            process.terminate()
            process.wait()
        log.seek(0)
        if process.returncode != 0:
            raise RuntimeError(f"exit status {process.returncode} of {command}\n{log.read()}")
    return ends


def run_process(command: list[str], threads: int) -> str:
    done = subprocess.run(command, text=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode} of {command}\n{done.stdout}{done.stderr}")
    return done.stdout


def run_transformers(folder: pathlib.Path, case: str, steps: int, options: argparse.Namespace) -> list[dict]:
    words = [sys.executable, __file__, "--process", str(folder), case, str(steps), str(options.threads)]
    return json.loads(run_process(words, options.threads).splitlines()[-1])


def worst_difference(ours: list[dict], theirs: list[dict], field: str) -> float:
    if len(ours) != len(theirs):
        raise RuntimeError(f"{len(ours)} steps of ours, {len(theirs)} of transformers'")
    return max(abs(mine[field] / other[field] - 1) for mine, other in zip(ours, theirs, strict=True))


def measure(folder: pathlib.Path, case: str, options: argparse.Namespace) -> dict:
    steps, worst, ratios = 1 + options.steps, {}, {"seconds": [], "cpu_s": []}
    timed = {field: {"ours": [], "transformers": []} for field in ratios}
    load = os.getloadavg()[0]
    for _ in range(options.repetitions):
        sides = {"ours": run_ours(folder, case, steps, options), "transformers": run_transformers(folder, case, steps, options)}
        for field, of_sides in timed.items():
            values = {name: [step[field] for step in done[1:]] for name, done in sides.items()}
            for name in of_sides:
                of_sides[name] += values[name]
            ratios[field].append(statistics.median(values["transformers"]) / statistics.median(values["ours"]))
        for field in ("loss", "grad_norm"):
            worst[field] = max(worst.get(field, 0.0), worst_difference(sides["ours"], sides["transformers"], field))
    theirs, result = sides["transformers"][1:], {"case": f"tower {case}", "threads": options.threads}
    for field, of_sides in timed.items():
        ours, others = (statistics.median(of_sides[name]) for name in ("ours", "transformers"))
        result[field] = {"ours": ours, "transformers": others, "ratio": others / ours,
                         "ratio_range": [min(ratios[field]), max(ratios[field])], "steps": of_sides}
    return result | {"loss_off_by": worst["loss"], "grad_norm_off_by": worst["grad_norm"],
                     "load_average": [load, os.getloadavg()[0]],
                     **{f"{field}_of_step": statistics.mean(step[field] for step in theirs)
                        for field in ("tokens", "positions", "patches")}}


def save(results: list[dict], parameters: int, options: argparse.Namespace) -> pathlib.Path:
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    fields = {name: re.search(rf"^{name}\s*: (.*)", cpu, re.M) for name in ("model name", "cpu family", "model")}
    head = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "transformers": transformers.__version__,
            "ringside": subprocess.getoutput(f"{options.ringside} --version").splitlines()[0],
            "cpu": {name: found and found[1] for name, found in fields.items()}, "cores": os.cpu_count(),
            "parameters": parameters, "samples": SAMPLES, "repetitions": options.repetitions, "steps": options.steps,
            "tokens_per_micro_batch": options.tokens_per_micro_batch}
    path = _ROOT / "tools/bench/results" / f"vision-beside-transformers-{options.threads}-threads-{head['date']}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [head, *results]))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ringside", type=pathlib.Path, default=_ROOT / "build/ringside")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a process")
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--tokens-per-micro-batch", type=int, default=8192)
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--small", action="store_true", help="two layers, to check the script")
    parser.add_argument("--save", action="store_true", help="write a file to tools/bench/results")
    options = parser.parse_args()
    options.ringside = options.ringside.resolve()
    with tempfile.TemporaryDirectory() as folder_name:
        folder = pathlib.Path(folder_name)
        parameters = write_model(folder / "model", options.small)
        write_samples(folder, 1 + options.steps)
        print(f"{parameters:,} parameters", file=sys.stderr)
        results = []
        for case in options.case or CASES:
            results.append(measure(folder, case, options))
            print(json.dumps(results[-1]), flush=True)
    if options.save:
        print(f"saved {save(results, parameters, options)}", file=sys.stderr)
    return 0 if all(result[field] <= RELATIVE for result in results for field in ("loss_off_by", "grad_norm_off_by")) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        print_transformers(pathlib.Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
    else:
        sys.exit(main())
