"""Training on images that tools return within a conversation, from end to end, against transformers.

A worker in Python samples from transformers' model: it speaks, its tool draws an image, it speaks again. The images travel
to the trainer, which is killed in the middle of the run and started again. Guards what only a whole run shows: the trainer's
log-probs of what was said before and after an image are transformers', on two sequence-parallel ranks, also of rollouts
that come out of the journal; prompts may all be text.
"""

import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import transformers

import ringside_cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "recipes/vision"))
sys.path.insert(0, str(ROOT / "rollout_bridge/python"))
import make_data  # noqa: E402
from ringside_bridge import Client, ConversationImage, Ended, Failed, Granted, Rollout, WeightsReady  # noqa: E402
from vision_training import patches_of, pixels_of  # noqa: E402

RECIPES = ROOT / "recipes/vision"
BOUND = 1e-4
STEPS, KILLED_AFTER = 6, 3


class Policy:
    """transformers' model of a checkpoint, with the weights that the trainer publishes."""

    def __init__(self, checkpoint: pathlib.Path):
        self.model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager")
        self.config = json.loads((checkpoint / "config.json").read_text())
        self.vision = self.config["vision_config"]
        self.vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
        self.version = -1

    def install(self, ready: WeightsReady) -> None:
        kinds = {entry["name"]: entry["dtype"] for entry in ready.manifest["tensors"]}
        assert set(kinds.values()) == {"F32"}, f"published as {set(kinds.values())}"
        weights = {name: torch.from_numpy(np.array(array)) for name, array in ready.tensors.items()}
        _, unknown = self.model.load_state_dict(weights, strict=False)
        assert not unknown, f"transformers' model has no {unknown}"
        self.model.tie_weights()
        self.version = ready.version

    def patches(self, pixels: np.ndarray) -> torch.Tensor:
        rows = torch.from_numpy(pixels).permute(2, 0, 1).float()
        return patches_of(rows, self.vision["patch_size"], self.vision["temporal_patch_size"],
                          self.vision["spatial_merge_size"])

    @torch.no_grad()
    def logprobs(self, ids: list[int], images: list[np.ndarray]) -> torch.Tensor:
        """Of the token after each of `ids`, [tokens, vocabulary]."""
        given = {}
        if images:
            sides = [(1, *(side // self.vision["patch_size"] for side in image.shape[:2])) for image in images]
            given = {"pixel_values": torch.cat([self.patches(image) for image in images]),
                     "image_grid_thw": torch.tensor(sides)}
        tokens = torch.tensor([ids])
        return self.model(input_ids=tokens, mm_token_type_ids=(tokens == self.config["image_token_id"]).long(),
                          **given).logits[0].log_softmax(-1)


def drawn(number: int) -> np.ndarray:
    """An image of the tool; few, so that samples share them."""
    png = make_data.draw(1 + number % 5, random.Random(number))
    return pixels_of(png).permute(1, 2, 0).to(torch.uint8).numpy()


def converse(policy: Policy, group: int, sample: int) -> dict:
    """Fields of a rollout: said, shown, said, perhaps shown again, said."""
    rng = random.Random(1000 * group + sample)
    torch.manual_seed(1000 * group + sample)
    word = policy.vocabulary
    prompt = [word[c] for c in "squares:"]
    ids, mask, logprobs, images = list(prompt), [], [], []

    def say(count: int) -> None:
        for _ in range(count):
            scores = policy.logprobs(ids, [image.pixels for image in images])[-1]
            token = word[make_data.IMAGE]
            while token == word[make_data.IMAGE]:  # transformers cannot tell a sampled one from an image's
                token = torch.multinomial(scores.exp(), 1).item()
            ids.append(token)
            mask.append(1)
            logprobs.append(scores[token].item())

    def show(number: int) -> None:
        pixels = drawn(number)
        tokens = pixels.shape[0] * pixels.shape[1] // (policy.vision["patch_size"] * policy.vision["spatial_merge_size"]) ** 2
        added = [word[make_data.START], *[word[make_data.IMAGE]] * tokens, word[make_data.END]]
        begin = len(ids) + 1 - len(prompt)
        ids.extend(added)
        mask.extend([0] * len(added))
        logprobs.extend([-1.0] * len(added))
        images.append(ConversationImage(pixels, begin, begin + tokens))

    say(2)
    if sample != 0:  # one sample of each group is text alone
        for _ in range(rng.randint(1, 2)):
            show(rng.randrange(8))
            say(rng.randint(1, 3))
    completion = ids[len(prompt):]
    return {"prompt_ids": prompt, "completion_ids": completion, "loss_mask": mask, "logprobs": logprobs, "images": images,
            "rewards": {"even": float(completion[-1] % 2 == 0)}}


def address_of(run: pathlib.Path, trainer: subprocess.Popen) -> str:
    deadline = time.monotonic() + 60
    path = run / "bridge/endpoint.json"
    while not path.exists():
        assert trainer.poll() is None and time.monotonic() < deadline, "the trainer does not come up"
        time.sleep(0.05)
    return json.loads(path.read_text())["rollout_address"]


def work(policy: Policy, client: Client, is_over) -> bool:
    """Until the run ends (True), or `is_over`."""
    while not is_over():
        event = client.poll(timeout=0.2)
        if isinstance(event, WeightsReady):
            policy.install(event)
            client.commit(event, event.tensors)
        elif isinstance(event, Granted):
            for group in event.groups:
                for sample in group.sample_indices:
                    fields = converse(policy, group.group_id, sample)
                    client.send(Rollout(
                        rollout_id=f"{group.group_id}-{sample}-{policy.version}-{group.attempt}-{time.time_ns()}",
                        group_id=group.group_id, group_size=group.group_size, sample_index=sample, attempt=group.attempt,
                        versions=[(policy.version, 0, len(fields["completion_ids"]))], **fields))
        elif isinstance(event, Ended):
            return True
        elif isinstance(event, Failed):
            raise AssertionError(f"the trainer refuses the worker: {event}")
    return False


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ringside-conversation-") as folder:
        base = pathlib.Path(folder)
        sys.argv = ["make_data.py", "--out", str(base / "data"), "--demonstrations", "200"]
        make_data.main()
        ringside_cli.run("train", RECIPES / "sft.yaml", "--run-dir", base / "sft", f"model.path={base / 'data/model'}",
                         f"data.sft={base / 'data/sft.jsonl'}", "train.steps=20", "log.progress=lines")
        checkpoint, run = base / "sft/checkpoint-final", base / "run"
        command = [ringside_cli.executable(), "train", RECIPES / "grpo.yaml", "--run-dir", run, "--nproc", 2,
                   f"model.path={checkpoint}", "data.train=", "rollout.reward=worker", f"train.steps={STEPS}",
                   "rollout.prompts_per_step=3", "rollout.group_size=4", "rollout.max_prompt_tokens=64",
                   "rollout.max_completion_tokens=8", "checkpoint.every=1", "bridge.rollout_address=ipc://" + str(base / "r"),
                   "bridge.weights_address=ipc://" + str(base / "w"), "log.progress=lines"]
        policy = Policy(checkpoint)
        with open(base / "trainer.log", "w") as log:
            def launch() -> subprocess.Popen:
                return subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)

            trainer = launch()
            steps = lambda: len(ringside_cli.read_steps(run)) if (run / "metrics.jsonl").exists() else 0  # noqa: E731
            try:
                with Client(address_of(run, trainer), "tools", capacity_samples=12) as client:
                    stopped = lambda: trainer.poll() is not None  # noqa: E731
                    assert not work(policy, client, lambda: stopped() or steps() >= KILLED_AFTER), "it has ended early"
                    assert not stopped(), "the trainer has ended"
                    trainer.kill()
                    trainer.wait(20)
                    trainer = launch()
                    assert work(policy, client, stopped), "no END"
                assert trainer.wait(60) == 0
            except BaseException:
                trainer.kill()
                print((base / "trainer.log").read_text()[-4000:])
                raise
        lines = ringside_cli.read_steps(run)
        assert lines[-1]["step"] == STEPS, f"the last step is {lines[-1]['step']}"
        worst = max(line["sampling/sampling_logp_difference/max"] for line in lines)
        passed = not math.isnan(worst) and worst <= BOUND
        print(f"transformers' log-probs against the trainer's{worst:24.3g}   (at most {BOUND:g}){'' if passed else '  FAIL'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
