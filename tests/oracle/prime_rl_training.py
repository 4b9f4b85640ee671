"""Two steps on batches that come over prime-rl's transport, against the same samples from a recorded file.

Guards the whole way in: a sample that is split, ordered or weighed otherwise, an advantage at another token, or a refused
message that takes a step's place shows in the loss, the gradient norm or the trained weights, which must be equal to the bit.
And the way out: the weights handed over for a step must be those that the steps before have made.
"""

import json
import pathlib
import random
import sys
import tempfile
import threading
import time

import torch
import yaml

import ringside_cli
import tiny_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rollout_bridge" / "prime_rl"))
import batches  # noqa: E402

STEPS, SAMPLES = 2, 6
COMPARED = ["loss", "policy_loss", "kl", "entropy", "grad_norm", "num_tokens", "critic/advantages/mean",
            "rollout_corr/k3_kl", "completions/mean_length"]


def record(model, folder: pathlib.Path) -> tuple[pathlib.Path, list[dict]]:
    """Samples with advantages a token and masked spans, also as a recorded file."""
    rng = random.Random(7)
    samples = tiny_models.record_rollouts(model, folder / "recorded.jsonl", STEPS * SAMPLES, 1, seed=3)
    for sample in samples:
        length = len(sample["completion_ids"])
        del sample["reward"], sample["finish_reason"]
        sample["loss_mask"] = [1] + [int(rng.random() < 0.8) for _ in range(length - 1)]
        sample["advantages"] = [rng.uniform(-2, 2) for _ in range(length)]
    path = folder / "rollouts.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path, samples


def write_recipe(folder: pathlib.Path) -> pathlib.Path:
    recipe = ringside_cli.write_grpo_recipe(folder, SAMPLES, 1, 96)
    tree = yaml.safe_load(recipe.read_text())
    tree["algorithm"]["advantage"] = {"estimator": "given"}
    tree["optimizer"]["learning_rate"] = 1e-3
    recipe.write_text(yaml.safe_dump(tree))
    return recipe


def as_prime_rl(sample: dict) -> dict:
    prompt, rest = len(sample["prompt_ids"]), sample["loss_mask"]
    return {"ids": sample["prompt_ids"] + sample["completion_ids"],
            "mask": [False] * prompt + [bool(m) for m in rest],
            "advantages": [0.0] * prompt + sample["advantages"], "logprobs": [0.0] * prompt + sample["logprobs"],
            "temperature": 1.0, "env": "tiny"}


def grid(samples: list[dict]) -> list[batches.MicroBatch]:
    """A step's micro-batches: two of samples, the second padded, and one without loss."""
    packed = [as_prime_rl(sample) for sample in samples]
    without_loss = packed[0] | {"mask": [False] * len(packed[0]["mask"])}
    return [batches.pack(packed[:4]), batches.pack([without_loss]), batches.pack(packed[4:], pad_to=32)]


class Orchestrator(threading.Thread):
    """Publishes each step's batch once the weights it would be sampled from have come, behind two batches that must be
    refused."""

    def __init__(self, publisher: batches.Publisher, samples: list[dict], broadcasts: pathlib.Path):
        super().__init__(daemon=True)
        self.publisher, self.samples, self.broadcasts = publisher, samples, broadcasts
        self.received = []

    def receive_weights(self, step: int):
        folder = self.broadcasts / f"step_{step}"
        for wanted, answer in ((".sender_ready", ".receiver_ready"), (".finished", None)):
            while not (folder / wanted).exists():
                time.sleep(0.02)
            if answer:
                (folder / answer).touch()
        self.received.append(ringside_cli.load_weights(folder))

    def run(self):
        self.receive_weights(0)
        self.publisher.wait_for_ready(60)
        for step in range(STEPS):
            if step > 0:
                self.receive_weights(step)
            micro_batches = grid(self.samples[step * SAMPLES : (step + 1) * SAMPLES])
            damaged = grid(self.samples[:SAMPLES])
            damaged[2].advantages[0] = float("nan")
            self.publisher.send(batches.encode(damaged))
            foreign = grid(self.samples[:SAMPLES])
            foreign[0].input_ids[1] = tiny_models.VOCAB
            self.publisher.send(batches.encode(foreign))
            self.publisher.send(batches.encode(micro_batches))


def same_weights(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def main() -> int:
    failures = []

    def check(holds: bool, what: str):
        print(("ok   " if holds else "FAIL ") + what)
        if not holds:
            failures.append(what)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = tiny_models.make_model(tiny_models.make_config("qwen3", heads=4, kv_heads=2, tied=True), seed=1)
        tiny_models.save(model, folder / "model")
        path, samples = record(model, folder)
        recipe = write_recipe(folder)
        ringside_cli.run("train", recipe, "--run-dir", folder / "file", "--rollouts", path, "--steps", STEPS)
        ringside_cli.run("train", recipe, "--run-dir", folder / "one", "--rollouts", path, "--steps", 1)

        publisher = batches.Publisher()
        orchestrator = Orchestrator(publisher, samples, folder / "broadcasts")
        orchestrator.start()
        output = ringside_cli.run("train", recipe, "--run-dir", folder / "prime", "--prime-rl", publisher.address, "--steps",
                                  STEPS, f"weights.directory={folder / 'broadcasts'}")
        orchestrator.join(60)
        publisher.close()

        expected, got = (ringside_cli.read_steps(folder / run) for run in ("file", "prime"))
        check(len(got) == len(expected) == STEPS, f"{STEPS} steps each")
        for step, (a, b) in enumerate(zip(expected, got)):
            for metric in COMPARED:
                check(a[metric] == b[metric], f"step {step + 1} {metric}: {a[metric]} and {b[metric]}")
        check(expected[0]["loss"] != expected[1]["loss"] and expected[0]["grad_norm"] > 0, "the steps differ and learn")
        check("reward" not in got[0], "no reward is made up")
        check(got[1]["rollouts/accepted"] == STEPS * SAMPLES, f"{STEPS * SAMPLES} samples accepted")
        check(output.count("advantages: a value that is not finite") == STEPS, "each damaged batch is named")
        check(output.count(f"= {tiny_models.VOCAB} is outside the model's vocabulary of {tiny_models.VOCAB}") == STEPS,
              "each batch with an id outside the vocabulary is named")
        final = [ringside_cli.load_weights(folder / run / "checkpoint-final") for run in ("file", "prime")]
        check(same_weights(*final), "equal weights at the end")
        handed = orchestrator.received
        check(len(handed) == STEPS, "weights handed over for every step")
        check(same_weights(handed[0], ringside_cli.load_weights(folder / "model")), "first the starting weights")
        check(same_weights(handed[1], ringside_cli.load_weights(folder / "one" / "checkpoint-final")), "then those of step 1")
        check(not same_weights(handed[0], handed[1]), "which are others")
    return 1 if failures else 0


sys.exit(main())
