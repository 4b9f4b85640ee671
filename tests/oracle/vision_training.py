"""Training on images from end to end, against transformers: the recipe of squares (recipes/vision), shortened.

Guards what only a whole run shows: a vision tower that is trained, published, kept constant and saved; prompts whose images
the trainer and its workers read on their own; a run that goes on at another layout. Fine-tuning trains the tower, GRPO keeps
it, goes on with ring attention in place of Ulysses and then trains it too. Each model that is left must load into
transformers with all its weights, and transformers must give the completions that `ringside generate` wrote the same
log-probs, from the PNG files on its own.
"""

import base64
import io
import json
import pathlib
import struct
import sys
import tempfile
import zlib

import torch
import transformers
from PIL import Image

import ringside_cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "recipes/vision"))
import make_data  # noqa: E402  (found through the line above)

RECIPES = ROOT / "recipes/vision"
LOGPROB_BOUND = 2e-4
ROLLOUT_BOUND = 1e-4  # between the worker's and the trainer's log-probs


def pixels_of(png: bytes) -> torch.Tensor:
    """The pixels of a PNG as make_data writes them, [3, rows, columns], 0 to 255."""
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", body[:8])
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    rows = torch.frombuffer(bytearray(zlib.decompress(data)), dtype=torch.uint8).view(height, 1 + 3 * width)
    return rows[:, 1:].reshape(height, width, 3).permute(2, 0, 1).float()


def patches_of(pixels: torch.Tensor, patch: int, temporal: int, merge: int) -> torch.Tensor:
    """Patch rows in the order of Qwen's processor, normalised to -1 .. 1; no size needs resizing here."""
    channels, height, width = pixels.shape
    rows = ((pixels / 255 - 0.5) / 0.5).reshape(channels, height // patch // merge, merge, patch, width // patch // merge,
                                                merge, patch)
    rows = rows.permute(1, 4, 2, 5, 0, 3, 6)  # blocks, patches of a block, channels, pixels
    frames = rows.unsqueeze(5).expand(*rows.shape[:5], temporal, *rows.shape[5:])
    return frames.reshape(-1, channels * temporal * patch * patch)


def worst_difference(checkpoint: pathlib.Path, data: pathlib.Path, samples: pathlib.Path) -> float:
    """Between transformers' log-probs of the completions in `samples` and those that stand there."""
    model, info = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    left = {kind: names for kind, names in info.items() if names}
    assert not left, f"{checkpoint} does not fit transformers' model: {left}"
    config = json.loads((checkpoint / "config.json").read_text())
    vision, image = config["vision_config"], config["image_token_id"]
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    merge = vision["spatial_merge_size"]
    side = make_data.SIDE // vision["patch_size"]
    tokens = (side // merge) ** 2
    prompt = [vocabulary[make_data.START], *[image] * tokens, vocabulary[make_data.END], *[vocabulary[c] for c in "squares:"]]
    images = {line["id"]: data / line["image"] for line in ringside_cli.read_lines(data / "test.jsonl")}
    worst = 0.0
    for line in ringside_cli.read_lines(samples):
        patches = patches_of(pixels_of(images[line["id"]].read_bytes()), vision["patch_size"], vision["temporal_patch_size"],
                             merge)
        ids = torch.tensor([prompt + line["completion_ids"]])
        with torch.no_grad():
            logits = model(input_ids=ids, pixel_values=patches, image_grid_thw=torch.tensor([[1, side, side]]),
                           mm_token_type_ids=(ids == image).long()).logits[0]
        expected = logits[len(prompt) - 1:-1].log_softmax(-1).gather(1, ids[0, len(prompt):].unsqueeze(1)).squeeze(1)
        assert logits[len(prompt) - 1].argmax() == line["completion_ids"][0], f"{line['id']}: another greedy token"
        worst = max(worst, (expected - torch.tensor(line["logprobs"])).abs().max().item())
    return worst


def check(name: str, value: float, bound: float) -> bool:
    passed = value <= bound
    print(f"{name:<60}{value:12.3g}   (at most {bound:g}){'' if passed else '  FAIL'}", flush=True)
    return passed


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ringside-vision-") as folder:
        run = pathlib.Path(folder)
        sys.argv = ["make_data.py", "--out", str(run / "data"), "--demonstrations", "3000"]
        make_data.main()
        data = run / "data"
        few = run / "few.jsonl"
        few_lines = (data / "test.jsonl").read_text().splitlines()[:24]
        (data / "few.jsonl").write_text("\n".join(few_lines) + "\n")
        few = data / "few.jsonl"
        ringside_cli.run("train", RECIPES / "sft.yaml", "--run-dir", run / "sft", f"model.path={data / 'model'}",
                         f"data.sft={data / 'sft.jsonl'}", "train.steps=80", "log.progress=lines")
        grpo = ["run", RECIPES / "grpo.yaml", "--run-dir", run / "grpo", f"model.path={run / 'sft/checkpoint-final'}",
                f"data.train={data / 'train.jsonl'}", f"data.eval={data / 'few.jsonl'}", "eval.every=4",
                "checkpoint.every=4", "log.progress=lines", "optimizer.lr_schedule=constant"]
        ringside_cli.run(*grpo, "train.steps=8")
        # The run goes on with ring attention.
        ringside_cli.run(*grpo, "train.steps=12", "parallel.ulysses_parallel_size=1", "parallel.ringattn_parallel_size=2")
        trained = [word.replace(str(run / "grpo"), str(run / "trained")) if isinstance(word, str) else word for word in grpo]
        trained[3] = run / "trained"
        ringside_cli.run(*trained, "train.steps=4", "model.vision=trained")
        good = True
        for stage in ("sft", "grpo", "trained"):
            checkpoint, samples = run / stage / "checkpoint-final", run / stage / "few.jsonl"
            ringside_cli.run("generate", "--model", checkpoint, "--input", few, "--output", samples, RECIPES / "grpo.yaml")
            good &= check(f"{stage}: log-probs against transformers", worst_difference(checkpoint, data, samples),
                          LOGPROB_BOUND)
        for stage, steps in (("grpo", 12), ("trained", 4)):
            lines = ringside_cli.read_steps(run / stage)
            assert [line["step"] for line in lines] == list(range(1, steps + 1)), f"{stage}: steps {lines}"
            good &= check(f"{stage}: the worker's log-probs against the trainer's",
                          max(line["sampling/sampling_logp_difference/max"] for line in lines), ROLLOUT_BOUND)
        for line in ringside_cli.read_lines(run / "grpo" / "samples.jsonl"):
            image, = line["images"]
            jpeg = Image.open(io.BytesIO(base64.b64decode(image["uri"].removeprefix("data:image/jpeg;base64,"))))
            assert jpeg.size == (make_data.SIDE, make_data.SIDE) and image["name"].endswith(".png"), image["name"]
            assert line["prompt"].count("<|image_pad|> x ") == 1, line["prompt"]
        newest = max((run / "grpo/checkpoints").iterdir())
        ringside_cli.run("export", newest, run / "exported")
        exported, final = (ringside_cli.load_weights(folder) for folder in (run / "exported", run / "grpo/checkpoint-final"))
        assert newest.name == "step-000012" and exported.keys() == final.keys(), "the checkpoint's export lacks tensors"
        assert all(final[name].equal(exported[name]) for name in final), "an exported tensor is not the final one"
        tower = [name for name in ringside_cli.load_weights(run / "sft/checkpoint-final") if name.startswith("model.visual.")]
        before, kept, changed = (ringside_cli.load_weights(run / stage / "checkpoint-final")
                                 for stage in ("sft", "grpo", "trained"))
        assert len(tower) > 10, f"the tower has {len(tower)} tensors"
        assert all(before[name].equal(kept[name]) for name in tower), "GRPO changed a tower that is frozen"
        assert any(not before[name].equal(changed[name]) for name in tower), "GRPO left a tower as it was that is trained"
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
