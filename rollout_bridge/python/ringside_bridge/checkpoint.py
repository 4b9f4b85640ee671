"""What a Hugging Face directory holds, and whether weights have its names and shapes."""

from __future__ import annotations

import json
import pathlib
import re


class TornModel(RuntimeError):
    """Weights that were installed in part: nothing may be sampled before others are installed whole."""


TIED = "lm_head.weight"  # a directory of a model with tied embeddings may hold it or not


def weight_files(folder: str | pathlib.Path) -> list[pathlib.Path]:
    """Its safetensors files; empty for a directory without (other formats, or the name of a model on a hub)."""
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    return sorted(folder.glob("*.safetensors"))


def layout(folder: str | pathlib.Path) -> dict[str, tuple[int, ...]]:
    """name -> shape, from the headers alone."""
    from safetensors import safe_open

    found = {}
    for path in weight_files(folder):
        with safe_open(path, framework="numpy") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    return found


def read(folder: str | pathlib.Path) -> dict:
    """name -> torch.Tensor on the CPU. FileNotFoundError when there is no safetensors file,
    ValueError when one is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = weight_files(folder)
    if not files:
        raise FileNotFoundError(f"{folder} holds no safetensors file")
    found: dict = {}
    for path in files:
        try:
            found |= load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path}: {error}") from error
    return found


def predicts_further(name: str, num_hidden_layers: int) -> bool:
    """Whether a tensor belongs to a layer that predicts further tokens, with which servers speculate: "mtp." (Qwen3-Next),
    or the layers behind the others (DeepSeek-V3, GLM-4.5)."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return name.startswith("mtp.") or (found is not None and int(found[1]) >= num_hidden_layers)


def without_constants(expected: dict[str, tuple[int, ...]], got: dict[str, tuple[int, ...]],
                      num_hidden_layers: int) -> dict[str, tuple[int, ...]]:
    """What must come: a trainer that does not train layers that predict further tokens does not send them, and of those that
    it trains not the copies of embedding and head."""
    return {name: shape for name, shape in expected.items() if name in got or not predicts_further(name, num_hidden_layers)}


def check_layout(got: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]], tied: bool) -> None:
    """ValueError naming the first tensor that is missing, not expected, or of another shape. Servers pass over names they
    do not know and leave what does not come as it was: without this a wrong set of weights would install in part."""
    ignored = {TIED} if tied else set()
    for name in sorted((expected.keys() | got.keys()) - ignored):
        if name not in got:
            raise ValueError(f"tensor {name} of shape {list(expected[name])} is missing")
        if name not in expected:
            raise ValueError(f"tensor {name} is not in the model")
        if got[name] != expected[name]:
            raise ValueError(f"tensor {name} has shape {list(got[name])}, the model's has {list(expected[name])}")
