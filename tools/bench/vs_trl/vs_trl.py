"""One GRPO step from recorded rollouts: `ringside train`, preset trl, beside TRL's GRPOTrainer.

Both sides train the same weights on the same token ids and rewards, one after the other, each in
fresh processes with the same number of threads in all. A step lasts from the end of the one
before: reference log-probs, loss, backward, clipping, optimizer, logging; nothing is generated.
"""

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import psutil
import torch
import transformers

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(_ROOT / "tests" / "oracle"))
import ringside_cli
import tiny_models

# What both sides are told. The first of the steps warms up and is not timed.
KL_COEF, LEARNING_RATE, MAX_GRAD_NORM = 0.04, 1e-4, 1.0
PROMPTS, GROUP_SIZE, MICRO_BATCH = 8, 8, 8  # the last: samples of a forward pass of TRL's
SAMPLES = PROMPTS * GROUP_SIZE
FIELDS = ("loss", "kl", "grad_norm")
RELATIVE = 1e-3  # of grad_norm, on every step


@dataclasses.dataclass(frozen=True)
class Size:
    """The model, whose 4 query and 2 key heads are of 64, and log-normal completion lengths."""

    hidden: int = 256
    layers: int = 6
    intermediate: int = 768
    vocab: int = 4096
    prompt_tokens: int = 64
    log_mean: float = 4.8
    log_std: float = 0.9
    shortest: int = 16
    longest: int = 1024
    first_id: int = 2
    steps: int = 4


SMALL = Size(128, 2, 256, 512, 16, 3.0, 0.9, 4, 128)
# Of --model: samples as those of recipes/smollm2/reverse_words, of ids that are no special tokens.
PRETRAINED = Size(
    vocab=49152,
    prompt_tokens=100,
    log_mean=3.0,
    log_std=0.3,
    shortest=8,
    longest=32,
    first_id=100,
    steps=3,
)


def write_model(size: Size, folder: pathlib.Path) -> int:
    """Writes a Qwen3 of random weights as a Hugging Face directory; returns its parameters."""
    config = tiny_models.make_config("qwen3", 4, 2, tied=True, layers=size.layers, head_dim=64)
    shape = dict(hidden_size=size.hidden, intermediate_size=size.intermediate)
    config.update(shape | dict(vocab_size=size.vocab))
    model = tiny_models.make_model(config, seed=0, std=0.05)
    # Its tokenizer knows fewer ids than the model; no text that is made of them is ever read.
    tiny_models.save(model, folder)
    return model.num_parameters()


def write_rollouts(size: Size, path: pathlib.Path) -> None:
    """Writes a step's rollouts: random ids, rewards and log-normal lengths under a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(SAMPLES, generator=generator) * size.log_std + size.log_mean).exp()
    lengths = lengths.clip(size.shortest, size.longest).long().tolist()
    rewards = torch.rand(SAMPLES, generator=generator).tolist()
    with path.open("w") as file:
        for sample, (length, reward) in enumerate(zip(lengths, rewards, strict=True)):
            ids = (size.first_id, size.vocab)
            if sample % GROUP_SIZE == 0:
                prompt = torch.randint(*ids, (size.prompt_tokens,), generator=generator)
            completion = torch.randint(*ids, (length,), generator=generator)
            rollout = dict(
                group_id=sample // GROUP_SIZE,
                prompt_ids=prompt.tolist(),
                completion_ids=completion.tolist(),
                # Neither side trains on them: with one update a step, old is the current policy.
                logprobs=[-math.log(size.vocab)] * length,
                reward=reward,
                finish_reason="length",
            )
            file.write(json.dumps(rollout) + "\n")


def run_fresh(command: list, threads: int) -> int:
    """Runs `command`; returns the sum over its processes of their peak resident bytes (VmHWM)."""
    peaks: dict[int, int] = {}
    command = [str(word) for word in command]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}  # MKL obeys it too
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess, OSError):  # one ended meanwhile
                    parts = [process, *psutil.Process(process.pid).children(recursive=True)]
                    for pid in (part.pid for part in parts):
                        status = pathlib.Path(f"/proc/{pid}/status").read_text()
                        if match := re.search(r"VmHWM:\s*(\d+) kB", status):
                            peaks[pid] = int(match[1]) * 1024
                time.sleep(0.02)  # polled: a child's ru_maxrss starts at what this process holds
        finally:
            process.terminate()
            process.wait()
        log.seek(0)
        if process.returncode != 0:
            raise RuntimeError(f"exit status {process.returncode} of {command}\n{log.read()}")
    return sum(peaks.values())


def run_ours(size: Size, folder: pathlib.Path, options: argparse.Namespace) -> dict:
    """Trains with `ringside train`, with --profile under perf; returns the side's figures."""
    words = {
        "model.path": folder / "model",
        "rollout.prompts_per_step": PROMPTS,
        "rollout.group_size": GROUP_SIZE,
        "rollout.max_completion_tokens": size.longest,
        "algorithm.preset": "trl",
        "algorithm.kl_coef": KL_COEF,
        "optimizer.learning_rate": LEARNING_RATE,
        "optimizer.lr_schedule": "constant",
        "optimizer.max_grad_norm": MAX_GRAD_NORM,
        "log.samples": 0,  # TRL logs no completions here either
        "train.threads": options.threads,
    } | dict(word.split("=", 1) for word in options.overrides.split())
    ranks = math.prod(int(words[key]) for key in words if re.match(r"parallel\..*_size$", key))
    each = int(words["train.threads"])
    if ranks * each != options.threads:
        raise SystemExit(f"{ranks} ranks x train.threads={each}, expected {options.threads} in all")
    command = [options.ringside, "train", *(f"{key}={value}" for key, value in words.items())]
    command += f"--rollouts {folder}/rollouts.jsonl --run-dir {folder}/run --steps {size.steps}".split()
    perf, data = options.profile and shutil.which("perf"), folder / "perf.data"
    if perf:
        command = [*f"{perf} record -q -e cpu-clock -F 199 -o {data} --".split(), *command]
    peak = run_fresh(command, each)
    steps = ringside_cli.read_steps(folder / "run")
    if perf:
        report = f"{perf} report --stdio -i {data} --percent-limit 0.5 -F overhead,dso,sym"
        for line in subprocess.check_output(report.split(), text=True).splitlines():
            if "%" in line:  # C++ names are endless
                print(re.sub(r"c10::function_ref<.*?callback_fn<at::native::", "", line)[:140])
    elif options.profile:
        print("no perf on this machine; the lines of metrics.jsonl:", *steps, sep="\n  ")
    return dict(
        steps=[dict(seconds=s["step_time"]) | {field: s[field] for field in FIELDS} for s in steps],
        raw_tokens=int(steps[0]["num_tokens"]),
        padded_tokens=int(steps[0]["num_tokens"]),  # documents are packed end to end
        peak_bytes=peak,
    )


def trl_process(size: Size, folder: pathlib.Path) -> int:
    """The body of TRL's process: trains on FOLDER's rollouts, writes its steps to trl.json."""
    import datasets
    import trl

    rollouts, steps = ringside_cli.read_lines(folder / "rollouts.jsonl"), []
    fields = ("prompt_ids", "completion_ids", "logprobs")
    recorded = {field: [rollout[field] for rollout in rollouts] for field in fields}

    class Trainer(trl.GRPOTrainer):
        ended = time.perf_counter()  # when the step before did
        sums = torch.zeros(5, dtype=torch.float64)

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            prompt, completion = inputs["prompt_mask"], inputs["completion_mask"]
            count, kl = completion.sum(), self._metrics["train"]["kl"][-1]
            raw, padded = prompt.sum() + count, prompt.numel() + completion.numel()
            self.sums += torch.tensor([loss.item(), kl * count, count, raw, padded])
            return loss

        def log(self, logs, start_time=None):
            super().log(logs, start_time)
            if "grad_norm" in logs:
                before, self.ended = self.ended, time.perf_counter()
                loss, kl, count, raw, padded = self.sums.tolist()
                steps.append(dict(seconds=self.ended - before, loss=loss, kl=kl / count))
                steps[-1] |= dict(grad_norm=logs["grad_norm"], raw_tokens=raw, padded_tokens=padded)
                self.sums.zero_()

    config = trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,  # the faster choice, and ours does not recompute either
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=SAMPLES // MICRO_BATCH,
        num_generations=GROUP_SIZE,
        max_completion_length=size.longest,
        max_steps=size.steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=MAX_GRAD_NORM,
        beta=KL_COEF,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = Trainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder / "model"),
        reward_funcs=lambda completions, **_: [rollout["reward"] for rollout in rollouts],
        args=config,
        # Texts are only counted: the recorded ids stand in for what would be generated.
        train_dataset=datasets.Dataset.from_dict({"prompt": ["prompt"] * PROMPTS}),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder / "model"),
        rollout_func=lambda prompts, trainer: dict(recorded),
    )
    trainer.train()
    (folder / "trl.json").write_text(json.dumps(steps))
    return 0


def run_trl(size: Size, folder: pathlib.Path, options: argparse.Namespace) -> dict:
    """Trains with GRPOTrainer in a process of its own; returns the side's figures."""
    words = [sys.executable, __file__, "--trl-process", folder, *["--small"] * options.small]
    words += ["--model", options.model] if options.model else []
    peak = run_fresh(words, options.threads)
    steps = json.loads((folder / "trl.json").read_text())
    tokens = {key: int(steps[0][key]) for key in ("raw_tokens", "padded_tokens")}
    return dict(steps=steps, peak_bytes=peak, **tokens)


def print_table(sides: dict[str, dict]) -> int:
    """Prints both sides and their ratio; returns how many steps' grad_norms disagree."""
    print(f"{'':<10}{'s/step':>10}{'peak MiB':>10}{'tokens':>9}{'padded':>9}{'tokens/s':>10}")
    for name, side in sides.items():
        side["seconds"] = statistics.median(step["seconds"] for step in side["steps"][1:])
        row = f"{name:<10}{side['seconds']:10.2f}{side['peak_bytes'] / 2**20:10.0f}"
        row += f"{side['raw_tokens']:9}{side['padded_tokens']:9}"
        print(row + f"{side['raw_tokens'] / side['seconds']:10.0f}")
    if len(sides) < 2:
        return 0
    ours, theirs = sides["ringside"], sides["TRL"]
    time_ratio, memory_ratio = (theirs[key] / ours[key] for key in ("seconds", "peak_bytes"))
    print(f"TRL / ringside: {time_ratio:.2f} in time, {memory_ratio:.2f} in memory")
    if ours["raw_tokens"] != theirs["raw_tokens"] or len(ours["steps"]) != len(theirs["steps"]):
        raise RuntimeError("the sides did not train on the same tokens and steps")
    failures = 0
    for number, (mine, expected) in enumerate(zip(ours["steps"], theirs["steps"], strict=True), 1):
        row = "".join(f"  {f} {mine[f]:.7g} TRL {expected[f]:.7g}" for f in ("seconds", *FIELDS))
        error = abs(mine["grad_norm"] / expected["grad_norm"] - 1)
        failures += not error <= RELATIVE
        print(f"step {number}{row}  off by {error:.1e}{'' if error <= RELATIVE else '  FAIL'}")
    return failures


def save(sides: dict[str, dict], options: argparse.Namespace, size: Size) -> pathlib.Path:
    """Writes what was measured, on what, to tools/bench/results/; returns the file."""
    date = datetime.datetime.now().isoformat(timespec="seconds")
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl")}
    versions["ringside"] = subprocess.getoutput(f"{options.ringside} --version").splitlines()[0]
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    record = dict(date=date, versions=versions, cpu=cpu and cpu[1], cores=os.cpu_count())
    record |= dict(load_average=os.getloadavg()[0], threads=options.threads)
    record |= dict(overrides=options.overrides, size=dataclasses.asdict(size), model=str(options.model), sides=sides)
    path = _ROOT / "tools" / "bench" / "results" / f"vs_trl-{date.replace(':', '')}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ringside", type=pathlib.Path, default=_ROOT / "build" / "ringside")
    parser.add_argument("--threads", type=int, default=2, help="of each side, in all")
    parser.add_argument("--overrides", default="", help='"key.sub=value ..." for our side')
    parser.add_argument("--small", action="store_true", help="a tiny size, to check the script")
    parser.add_argument("--model", type=pathlib.Path, help="directory of a pretrained model")
    parser.add_argument("--ours-only", action="store_true", help="leave TRL out")
    either = parser.add_mutually_exclusive_group()  # figures under perf are not to be kept
    either.add_argument("--profile", action="store_true", help="our side alone, under perf")
    either.add_argument("--save", action="store_true", help="write JSON to tools/bench/results/")
    parser.add_argument("--trl-process", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = PRETRAINED if options.model else SMALL if options.small else Size()
    options.ringside = options.ringside.resolve()
    if options.trl_process:
        return trl_process(size, options.trl_process)
    with tempfile.TemporaryDirectory() as folder_name:
        folder = pathlib.Path(folder_name)
        if options.model:
            (folder / "model").symlink_to(options.model.resolve())
            print(f"{options.model}, ", end="")
        else:
            print(f"{write_model(size, folder / 'model'):,} parameters, ", end="")
        write_rollouts(size, folder / "rollouts.jsonl")
        print(f"{SAMPLES} samples, {options.threads} threads a side")
        sides = {"ringside": run_ours(size, folder, options)}
        if not (options.ours_only or options.profile):
            sides["TRL"] = run_trl(size, folder, options)
    failures = print_table(sides)
    if options.save:
        print(save(sides, options, size).relative_to(_ROOT))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
