"""Weights of a tiny Qwen3 as a safetensors file, for tests without torch."""

import json
import pathlib
import random
import struct


def shapes_of(config: dict) -> dict[str, list[int]]:
    e, f, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    layer = {"self_attn.q_proj.weight": [q, e], "self_attn.k_proj.weight": [kv, e], "self_attn.v_proj.weight": [kv, e],
             "self_attn.o_proj.weight": [e, q], "self_attn.q_norm.weight": [d], "self_attn.k_norm.weight": [d],
             "mlp.gate_proj.weight": [f, e], "mlp.up_proj.weight": [f, e], "mlp.down_proj.weight": [e, f],
             "input_layernorm.weight": [e], "post_attention_layernorm.weight": [e]}
    return {"model.embed_tokens.weight": [config["vocab_size"], e], "model.norm.weight": [e],
            **{f"model.layers.0.{name}": shape for name, shape in layer.items()}}


def write_weights(path: pathlib.Path, shapes: dict[str, list[int]], spoiled: str = "") -> None:
    """A safetensors file of small random fp32 values; the first value of tensor `spoiled` is NaN."""
    rng, header, data = random.Random(1), {}, b""
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        values = [rng.gauss(0, 0.1) + (len(shape) == 1) for _ in range(count)]
        if name == spoiled:
            values[0] = float("nan")
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *values)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
