"""Gradients of the sum of log-probs, parameter by parameter, against one backward of transformers.

Guards what log-probs cannot see: a gradient that is dropped, doubled or arrives at another parameter: of shared key
parts, of experts and their router, of tied embeddings.

Usage: hf_gradients.py HF_GRADIENTS_EXECUTABLE [FAMILY ...]
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import tiny_models  # noqa: E402  (found through the line above)

BOUND = 1e-4  # of each parameter's largest gradient
LENGTHS = (2, 9, 70)
# family, query heads, KV heads, tied
MODELS = [
    ("qwen3", 4, 2, True),
    ("llama", 6, 2, False),
    ("qwen3_moe", 4, 2, False),
    ("deepseek_v3", 4, 4, False),
    ("deepseek_v3", 6, 6, True),
]


def save_gradients(model, documents: list[list[int]], folder: pathlib.Path) -> None:
    """One backward; then the gradients are saved as weights, so that they have the names of files."""
    for ids in documents:
        scores = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        scores.gather(1, torch.tensor(ids[1:])[:, None]).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.zero_()
    model.save_pretrained(folder)


def read(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors")
            for name, tensor in safetensors.torch.load_file(file).items()}


def check(executable: str, work: pathlib.Path, name: str, config, dtype: str) -> None:
    chooser = random.Random(5)
    documents = [[chooser.randrange(2, tiny_models.VOCAB) for _ in range(length)] for length in LENGTHS]
    model = tiny_models.make_model(config, seed=len(name))
    folder = tiny_models.save(model, work / "model")
    (folder / "documents.json").write_text(json.dumps(documents))
    done = subprocess.run([executable, folder, work / "ours", dtype], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    save_gradients(model.to(getattr(torch, dtype)), documents, work / "theirs")
    ours, theirs = read(work / "ours"), read(work / "theirs")
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    worst, worst_name = 0.0, ""
    for key, expected in theirs.items():
        largest = expected.abs().max().item()
        if largest == 0:  # not trained
            assert ours[key].abs().max() == 0, f"{name}: {key} has a gradient"
            assert key.endswith("e_score_correction_bias") or ".experts." in key, f"{name}: {key} has no gradient"
            continue
        error = (ours[key] - expected).abs().max().item() / largest
        worst, worst_name = max((worst, worst_name), (error, key))
    assert worst <= BOUND, f"{name} {dtype}: {worst_name} differs by {worst:.2e} of its largest gradient"
    print(f"{name} {dtype}: {len(theirs)} parameters, largest relative difference {worst:.1e} ({worst_name})")


def main() -> None:
    executable, *families = sys.argv[1:]
    torch.set_num_threads(1)
    for family, heads, kv_heads, tied in MODELS:
        if families and family not in families:
            continue
        for dtype in ("float32", "float64"):
            with tempfile.TemporaryDirectory() as folder:
                name = f"{family} {heads}/{kv_heads}{' tied' if tied else ''}"
                config = tiny_models.make_config(family, heads, kv_heads, tied)
                check(executable, pathlib.Path(folder), name, config, dtype)


main()
