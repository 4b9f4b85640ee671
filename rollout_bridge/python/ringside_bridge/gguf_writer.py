"""A Hugging Face directory (Qwen2, Qwen3, Llama) as a GGUF file in float32, for llama.cpp. Needs the packages gguf, numpy.

Ids go in and ids come out, so the vocabulary is one of numbers: token 17 is called "<17>". Nothing can be merged into one
character with its neighbours then, which would leave its log-prob out of llama-server's answers, as real texts do. For
chats, convert with llama.cpp's own script.
"""

from __future__ import annotations

import json
import math
import pathlib

import gguf
import numpy as np

from .checkpoint import weight_files

ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3, "llama": gguf.MODEL_ARCH.LLAMA}
DTYPES = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "BF16": np.uint16}


def tensors_of(path: pathlib.Path):
    """(name, float32 array) of a safetensors file."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{path}: {name} is {entry['dtype']}, expected one of {', '.join(DTYPES)}")
        count = math.prod(entry["shape"])
        raw = np.fromfile(path, DTYPES[entry["dtype"]], count, offset=begin + entry["data_offsets"][0])
        if entry["dtype"] == "BF16":  # the upper half of a float32
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        yield name, raw.astype(np.float32).reshape(entry["shape"])


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection in the order of llama.cpp's rotation for Llama: pairs (i, i + half) side by side."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def llama3_factors(rope: dict, base: float, dim: int) -> np.ndarray:
    """What llama.cpp divides the rotation's frequencies by (rope_type llama3 of transformers)."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    wavelength = 2 * np.pi * base ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    turns = rope["original_max_position_embeddings"] / wavelength
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def add_shape(writer: gguf.GGUFWriter, config: dict) -> None:
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(dim)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_rope(writer: gguf.GGUFWriter, config: dict) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    writer.add_rope_freq_base(base)
    if kind == "llama3":
        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, base, dim))
    elif kind != "default":
        raise ValueError(f"rope_type is {kind}, expected default or llama3")


def add_vocabulary(writer: gguf.GGUFWriter, size: int, eos: list[int], texts: list[str] | None) -> None:
    """`texts`: other names for the tokens, in the byte alphabet of GPT-2."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts or [f"<{i}>" for i in range(size)])
    writer.add_token_types([gguf.TokenType.CONTROL if i in eos else gguf.TokenType.NORMAL for i in range(size)])
    writer.add_token_merges(["< 0"])  # llama.cpp wants a list, and an empty one is not written
    writer.add_add_bos_token(False)
    if eos:
        writer.add_eos_token_id(eos[0])
        writer.add_eot_token_id(eos[-1])


def write_gguf(directory: pathlib.Path, path: pathlib.Path, texts: list[str] | None = None) -> None:
    """ValueError or OSError when the directory holds no model of these three kinds."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"{directory}: model_type is {kind}, expected one of {', '.join(ARCHITECTURES)}")
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[kind]])
    add_shape(writer, config)
    add_rope(writer, config)
    eos = config.get("eos_token_id")
    add_vocabulary(writer, config["vocab_size"], eos if isinstance(eos, list) else [] if eos is None else [eos], texts)
    heads = {"q_proj": config["num_attention_heads"],
             "k_proj": config.get("num_key_value_heads") or config["num_attention_heads"]}
    files = weight_files(directory)
    if not files:
        raise ValueError(f"{directory}: no safetensors")
    for file in files:
        for name, array in tensors_of(file):
            if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.get("tie_word_embeddings")):
                continue
            new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if new_name is None:
                raise ValueError(f"{file}: llama.cpp has no place for {name}")
            part = name.split(".")[-2]
            if kind == "llama" and part in heads:
                array = interleaved(array, heads[part])
            writer.add_tensor(new_name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
