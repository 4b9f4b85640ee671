"""Models made by transformers, loaded and saved again by Ringside, loaded by transformers: the logits must be the same bits.

Guards against what only the other side can see: a config.json key that transformers reads otherwise, a bias or norm
dropped, tensors under wrong names, RoPE scaling lost, shards that its index does not find.

Usage: hf_roundtrip.py HF_RESAVE_EXECUTABLE
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import tiny_models  # noqa: E402  (found through the line above)

IDS = torch.arange(2, 90).reshape(2, 44)  # longer than Llama's original context of 64 / 2, ids in range of the vocabulary


def with_biases(config):
    """Llama and Qwen3 with the bias terms that their configurations allow."""
    config.attention_bias = True
    if config.model_type == "llama":
        config.mlp_bias = True
    return config


def as_transformers_4(folder: pathlib.Path) -> None:
    """Rewrites config.json with the keys of transformers 4: rope_theta, rope_scaling, torch_dtype."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    path.write_text(json.dumps(config))


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(IDS).logits


def load(folder: pathlib.Path, dtype: torch.dtype):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True,
        attn_implementation=tiny_models.attention_of(transformers.AutoConfig.from_pretrained(folder)))
    problems = {key: value for key, value in info.items() if value}
    assert not problems, f"transformers found in {folder}: {problems}"
    return model


def resave(executable: str, source: pathlib.Path, target: pathlib.Path, dtype: str, *shard_bytes) -> None:
    done = subprocess.run([executable, source, target, dtype, *map(str, shard_bytes)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr


def check(executable: str, work: pathlib.Path, name: str, config, dtype="float32", shard_in=None, shard_out=None,
          old_config=False) -> None:
    model = tiny_models.make_model(config, seed=len(name))
    source, target = work / f"{name}-in", work / f"{name}-out"
    model.save_pretrained(source, **({"max_shard_size": shard_in} if shard_in else {}))
    tiny_models.make_tokenizer().save_pretrained(source)
    assert (source / "model.safetensors.index.json").exists() == bool(shard_in)
    if old_config:
        as_transformers_4(source)
    resave(executable, source, target, dtype, *([shard_out] if shard_out else []))
    assert (target / "model.safetensors.index.json").exists() == bool(shard_out)

    torch_dtype = getattr(torch, dtype)
    # Both loaded from disk: model.to(bfloat16) would round the RoPE frequencies too.
    before, again = load(source, torch_dtype), load(target, torch_dtype)
    assert torch.equal(logits(before), logits(again)), f"{name}: logits differ"
    assert again.config.eos_token_id == config.eos_token_id and again.config.pad_token_id == config.pad_token_id
    assert again.config.rope_parameters == model.config.rope_parameters, again.config.rope_parameters
    assert again.config.dtype == torch_dtype
    assert again.generation_config.eos_token_id == config.eos_token_id
    assert transformers.AutoTokenizer.from_pretrained(target).eos_token == "<eos>"
    print(f"{name}: identical logits over {IDS.numel()} tokens")


def check_mxfp4(executable: str, work: pathlib.Path) -> None:
    """A GPT-OSS whose experts are in MXFP4: loaded and saved again, they are what transformers unpacks."""
    config = tiny_models.make_family("gpt_oss")
    config.intermediate_size = 32
    source = work / "gpt_oss-mxfp4"
    tiny_models.save(tiny_models.make_model(config, seed=5), source)
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    expected = {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(118, 128, (experts, outputs, inputs // 32), dtype=torch.uint8)
        expected[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    fields = json.loads((source / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (source / "config.json").write_text(json.dumps(fields))
    for dtype in ("float32", "bfloat16"):
        target = work / f"gpt_oss-mxfp4-{dtype}"
        resave(executable, source, target, dtype)
        found = safetensors.torch.load_file(target / "model.safetensors")
        for name, value in expected.items():
            assert found[name].dtype == getattr(torch, dtype), found[name].dtype
            assert torch.equal(found[name], value.to(found[name].dtype)), name
        assert "quantization_config" not in json.loads((target / "config.json").read_text())
        logits(load(target, getattr(torch, dtype)))
    print(f"gpt_oss-mxfp4: {sum(value.numel() for value in expected.values())} identical weights")


def fp8_values(matrix: torch.Tensor, scales: torch.Tensor, block: list[int]) -> torch.Tensor:
    """DeepSeek-V3's weight_dequant: each element times the scale of its block; the last blocks may be partial."""
    rows, columns = (torch.arange(size) // width for size, width in zip(matrix.shape, block))
    return matrix.float() * scales.float()[rows][:, columns]


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}


def compressed(**weights) -> dict:
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"], "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "symmetric": True, **weights}}}}


# Name: quantization_config, suffix of the scales, rows and columns of a block (None: all), dtype of the scales.
FP8_FORMS = {
    "fp8 in whole blocks": (FP8 | {"weight_block_size": [8, 8]}, "_scale_inv", (8, 8), torch.float32),
    "fp8 with partial blocks": (FP8 | {"weight_block_size": [24, 20]}, "_scale_inv", (24, 20), torch.float32),
    "fp8 with exponents as scales": (FP8 | {"weight_block_size": [24, 20]}, "_scale_inv", (24, 20), torch.float8_e8m0fnu),
    "compressed, one scale a row": (compressed(strategy="channel"), "_scale", (1, None), torch.bfloat16),
    "compressed, one scale": (compressed(strategy="tensor"), "_scale", (None, None), torch.float32),
    "compressed in blocks": (compressed(strategy="block", block_structure=[24, 20]), "_scale", (24, 20), torch.bfloat16),
}


def check_fp8(executable: str, work: pathlib.Path, name: str) -> None:
    """A Qwen3-MoE whose projections are in FP8: loaded and saved again, they are the products that the formats define."""
    quantisation, suffix, sizes, scale_dtype = FP8_FORMS[name]
    config = tiny_models.make_family("qwen3_moe, window")  # experts one by one, as DeepSeek-V3 and Qwen3 store them
    source, target = work / f"{name}-in", work / f"{name}-out"
    tiny_models.save(tiny_models.make_model(config, seed=5), source)
    tensors, expected = safetensors.torch.load_file(source / "model.safetensors"), {}
    for key in [key for key in tensors if key.endswith("_proj.weight")]:
        block = [size or whole for size, whole in zip(sizes, tensors[key].shape)]
        grid = [-(-whole // size) for whole, size in zip(tensors[key].shape, block)]
        matrix = (tensors[key] * 500).to(torch.float8_e4m3fn)
        scales = torch.exp2(torch.randint(-12, -6, grid).float()).to(scale_dtype)
        if scale_dtype != torch.float8_e8m0fnu:
            scales = (scales.float() * (1 + torch.rand(grid))).to(scale_dtype)
        expected[key] = fp8_values(matrix, scales, block)
        if name == "fp8 in whole blocks":
            assert torch.equal(expected[key], Fp8Dequantize(None)._dequantize_one(matrix, scales))
        tensors |= {key: matrix, key + suffix: scales, key.replace(".weight", ".input_scale"): torch.ones(1)}
    safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    fields = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(fields | {"quantization_config": quantisation}))
    resave(executable, source, target, "float32")
    found = safetensors.torch.load_file(target / "model.safetensors")
    assert set(found) == {key for key in tensors if "scale" not in key}
    for key, value in found.items():
        assert value.dtype == torch.float32 and torch.equal(value, expected.get(key, tensors[key])), f"{name}: {key}"
    assert "quantization_config" not in json.loads((target / "config.json").read_text())
    load(target, torch.float32)
    print(f"{name}: {sum(value.numel() for value in expected.values())} identical weights")


def check_text_part(executable: str, work: pathlib.Path) -> None:
    """A Qwen3.5 as on the hub, with a vision tower: the text part is read and saved where it was."""
    text = tiny_models.make_family("qwen3_5")
    whole = transformers.Qwen3_5ForConditionalGeneration(transformers.Qwen3_5Config(
        text_config=text.to_dict(),
        vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4,
                           out_hidden_size=text.hidden_size, num_position_embeddings=16))).eval()
    drawn = tiny_models.make_model(text, seed=3).state_dict()
    renamed = {name.replace("model.", "model.language_model.", 1): value for name, value in drawn.items()}
    assert not whole.load_state_dict(renamed, strict=False).unexpected_keys
    source, target = work / "hub-in", work / "hub-out"
    whole.save_pretrained(source)
    tiny_models.make_tokenizer().save_pretrained(source)
    resave(executable, source, target, "float32")
    before, again = load(source, torch.float32), load(target, torch.float32)
    assert torch.equal(logits(before), logits(again)), "text part: logits differ"
    stored = [safetensors.torch.load_file(folder / "model.safetensors") for folder in (source, target)]
    assert set(stored[1]) == {name for name in stored[0] if not name.startswith("model.visual.")}
    assert any(name.startswith("model.language_model.layers.") for name in stored[1])
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, target)]
    assert configs[0]["vision_config"] == configs[1]["vision_config"]
    assert configs[1]["model_type"] == "qwen3_5"
    print("text part of a multimodal model: identical logits, names and vision_config")


def main() -> None:
    # The first cos, exp or log on two threads at once can be a coarse one: sp/mesh/vector_math.h.
    torch.set_num_threads(1)
    executable = sys.argv[1]
    torch.manual_seed(0)
    make = tiny_models.make_config
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for family in ("qwen3", "qwen2", "llama"):
            for tied in (True, False):
                check(executable, work, f"{family}-{'tied' if tied else 'untied'}", make(family, 4, 2, tied))
            check(executable, work, f"{family}-transformers4", make(family, 4, 1, False), old_config=True)
            check(executable, work, f"{family}-sharded", make(family, 6, 2, False, layers=3), shard_in="60KB",
                  shard_out=50_000)
            check(executable, work, f"{family}-bfloat16", make(family, 4, 2, True), dtype="bfloat16")
        check_mxfp4(executable, work)
        for name in FP8_FORMS:
            check_fp8(executable, work, name)
        for family in ("mistral", "qwen3_moe"):
            check(executable, work, family, make(family, 4, 2, False))
        check(executable, work, "deepseek_v3-bfloat16", make("deepseek_v3", 4, 4, False), dtype="bfloat16")
        for family in tiny_models.FAMILIES:
            check(executable, work, family, tiny_models.make_family(family))
        check(executable, work, "gemma3-bfloat16", tiny_models.make_family("gemma3"), dtype="bfloat16")
        check(executable, work, "qwen3_moe-sharded", make("qwen3_moe", 4, 2, True), shard_in="60KB", shard_out=50_000)
        check_text_part(executable, work)
        for rope in tiny_models.ROPE_TYPES:
            check(executable, work, f"llama-{rope}", tiny_models.make_rope_config(rope))
            check(executable, work, f"llama-{rope}-transformers4", tiny_models.make_rope_config(rope), old_config=True)
        for family in ("qwen3", "llama"):
            check(executable, work, f"{family}-biases", with_biases(make(family, 4, 2, False)))


main()
