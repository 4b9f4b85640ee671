"""Our client of vLLM with images against a real vLLM on the CPU, judged by transformers.

Starts a server on a tiny random Qwen2.5-VL and one on a Qwen3-VL, samples prompts of 0, 1 and 2 images through
build/.../probe_vllm_images, and recomputes every log-prob in fp32. Then GRPO through a server, with a frozen and with a trained
tower: the trainer recomputes every log-prob. Guards: patch rows that vLLM reads otherwise than they were
meant, placeholders that it expands again, images that it takes for one because their prompts have the same ids, and positions
after an image, versions that lack a tower, and images encoded under old weights.

Run by tools/test_vllm.sh; $VLLM_PYTHON names the Python that has vLLM.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import tokenizers
import torch
import transformers

import tiny_models
import vllm_client

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "recipes/vision"))
import make_data  # noqa: E402  (found through the line above)

RINGSIDE = str(ROOT / "build/ringside")
# Profiling would run the server's own image processor, which is never used here and refuses transformers 5.23's calls.
SERVER = ("--skip-mm-profiling", "--limit-mm-per-prompt", '{"image": 4, "video": 0}')
STEPS, PATIENCE_S = 4, 300
VOCAB, PLACEHOLDER, MERGE, PATCH = 384, 380, 2, 4
ROW = 3 * 2 * PATCH**2
FAMILIES = ("Qwen2_5_VL", "Qwen3VL")


def make_model(family: str):
    """A random model whose heads vLLM's kernels for the CPU take."""
    text = dict(vocab_size=VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=None, eos_token_id=0,
                pad_token_id=0)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}
    tower = dict(depth=2, num_heads=4, patch_size=PATCH, temporal_patch_size=2, spatial_merge_size=MERGE, hidden_size=128,
                 intermediate_size=192, out_hidden_size=128)
    ids = {"image_token_id": PLACEHOLDER, "video_token_id": 381, "vision_start_token_id": 382, "vision_end_token_id": 383}
    if family == "Qwen3VL":
        text |= dict(head_dim=32, rope_parameters=rope | {"mrope_interleaved": True})
        tower |= dict(num_position_embeddings=64, deepstack_visual_indexes=[0])
        config = transformers.Qwen3VLConfig(text_config=text, vision_config=tower, **ids)
    else:
        text["rope_parameters"] = rope
        tower |= dict(window_size=16, fullatt_block_indexes=[1])
        config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **ids)
    return tiny_models.make_model(config, 3, 0.1)


def save(model, family: str, folder: pathlib.Path) -> None:
    """With the tokenizer and the processors that a server reads before it starts."""
    model.save_pretrained(folder)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    special = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    words = ["<eos>", *letters, *(f"<unused{i}>" for i in range(PLACEHOLDER - 1 - len(letters))), *special]
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens(["<eos>", *special])
    names = dict(zip(("image_token", "video_token", "vision_start_token", "vision_end_token"), special))
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", **names).save_pretrained(folder)
    processor = {"patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
                 "size": {"shortest_edge": 64, "longest_edge": 4096}, "processor_class": f"{family}Processor"}
    video = "Qwen3VLVideoProcessor" if family == "Qwen3VL" else "Qwen2VLVideoProcessor"
    for name, kind in (("preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessor"}),
                       ("video_preprocessor_config.json", {"video_processor_type": video})):
        (folder / name).write_text(json.dumps(processor | kind))


def make_prompts() -> list[dict]:
    """Of parts: a number of text tokens, or an image's grid and number. The first two have the same ids."""
    chooser = random.Random(3)
    text = [chooser.randrange(1, 256) for _ in range(64)]
    prompts = []
    for parts in ([4, ((4, 4), 1), 5], [4, ((4, 4), 2), 5], [3, ((6, 10), 3), 2, ((2, 6), 4), 7], [6], [((4, 2), 5), 3],
                  [4, ((4, 4), 1), 5]):
        ids, images = [], []
        for part in parts:
            if isinstance(part, int):
                ids += text[:part]
                continue
            grid, number = part
            torch.manual_seed(number)
            tokens = grid[0] * grid[1] // MERGE**2
            images.append({"id": f"image-{number}", "begin": len(ids), "tokens": tokens, "grid": list(grid),
                           "patches": torch.randn(grid[0] * grid[1] * ROW).tolist()})
            ids += [PLACEHOLDER] * tokens
        prompts.append({"ids": ids, "images": images})
    return prompts


@torch.no_grad()
def differences(model, prompt: dict, completion: dict) -> list[float]:
    """|server's log-prob - transformers'| of every completion token."""
    ids = prompt["ids"] + completion["completion_ids"]
    images = {}
    if prompt["images"]:
        kinds = [int(id == PLACEHOLDER and at < len(prompt["ids"])) for at, id in enumerate(ids)]
        images = {"pixel_values": torch.cat([torch.tensor(image["patches"]).view(-1, ROW) for image in prompt["images"]]),
                  "image_grid_thw": torch.tensor([[1, *image["grid"]] for image in prompt["images"]]),
                  "mm_token_type_ids": torch.tensor([kinds])}
    logits = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), **images).logits[0]
    expected = logits[len(prompt["ids"]) - 1 : -1].log_softmax(-1).gather(1, torch.tensor(ids[len(prompt["ids"]) :])[:, None])[:, 0]
    return (torch.tensor(completion["logprobs"]) - expected).abs().tolist()


def judge(family: str, folder: pathlib.Path) -> bool:
    model = make_model(family)
    save(model, family, folder / "model")
    prompts = make_prompts()
    (folder / "prompts.json").write_text(json.dumps(prompts))
    with vllm_client.vllm_server(folder / "model", folder / "server.log", SERVER) as url:
        probe = ROOT / "build/tests/rollout_bridge/servers/probe_vllm_images"
        done = subprocess.run([probe, url, "policy", str(VOCAB), folder / "prompts.json"], capture_output=True, text=True,
                              timeout=300, check=False)
    if done.returncode != 0:
        print(done.stderr, (folder / "server.log").read_text()[-3000:], sep="\n")
        return False
    completions = json.loads(done.stdout)
    found = [differences(model, prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    good = vllm_client.report(family, sum(found, []), vllm_client.MEAN_BOUND)
    # What an image that is taken for another of the same ids would cost.
    other = differences(model, prompts[1], completions[0])
    print(f"{family}: with the wrong image {sum(other) / len(other):.2e} apart")
    return good and sum(other) / len(other) > 100 * vllm_client.MEAN_BOUND


def write_data(folder: pathlib.Path) -> list[str]:
    """Eight prompts with an image each, so that steps see images again under other weights, and a reward that varies."""
    chooser = random.Random(1)
    lines = []
    for i in range(8):
        (folder / f"{i}.png").write_bytes(make_data.draw(1 + i % 5, chooser))
        lines.append({"prompt": "<|vision_start|><|image_pad|><|vision_end|>squares:", "image": f"{i}.png", "answer": ""})
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rewards.py").write_text("def letters(completions):\n    return [float(sum(map(ord, text)) % 7) for text in completions]\n")
    return [f"data.train={folder / 'train.jsonl'}", "data.image_key=image", f"rollout.reward=python({folder / 'rewards.py'}:letters)"]


def train(vision: str, folder: pathlib.Path) -> bool:
    """Trainer and worker through a few versions; model.vision is `vision`."""
    model, family = make_model("Qwen3VL"), "Qwen3VL"
    save(model, family, folder / "model")
    words = [f"model.path={folder / 'model'}", f"model.vision={vision}", *write_data(folder), "rollout.group_size=4",
             "rollout.prompts_per_step=4", "rollout.max_prompt_tokens=96", "rollout.max_completion_tokens=8", "train.threads=1",
             f"train.steps={STEPS}", "optimizer.learning_rate=1e-2", "--run-dir", str(folder / "run")]
    with vllm_client.vllm_server(folder / "model", folder / "server.log", SERVER) as url:
        served = ["--server", "vllm", f"rollout.server_options.url={url}", "rollout.server_options.model=policy"]
        codes = vllm_client.exit_statuses([[RINGSIDE, "train", *words], [RINGSIDE, "rollout", *words, *served]], folder / "log",
                                          PATIENCE_S)
    if codes != [0, 0]:
        print(f"exit {codes}:", (folder / "log").read_text()[-4000:], sep="\n")
        return False
    steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    worst = max(step["sampling/sampling_logp_difference/mean"] for step in steps)
    moved = any(step["grad_norm"] > 0 for step in steps[:-1])
    print(f"GRPO, tower {vision}: {len(steps)} steps, log-probs at most {worst:.1e} from the trainer's (mean of a step)")
    return len(steps) == STEPS and moved and worst < vllm_client.MEAN_BOUND


def main() -> int:
    good = True
    for check, argument in [*((judge, family) for family in FAMILIES), (train, "frozen"), (train, "trained")]:
        with tempfile.TemporaryDirectory() as name:
            good &= check(argument, pathlib.Path(name))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
