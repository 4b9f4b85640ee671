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

import torch
import transformers

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


def main() -> None:
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
        for family in ("mistral", "qwen3_moe"):
            check(executable, work, family, make(family, 4, 2, False))
        check(executable, work, "deepseek_v3-bfloat16", make("deepseek_v3", 4, 4, False), dtype="bfloat16")
        for family in tiny_models.FAMILIES:
            check(executable, work, family, tiny_models.make_family(family))
        check(executable, work, "gemma3-bfloat16", tiny_models.make_family("gemma3"), dtype="bfloat16")
        check(executable, work, "qwen3_moe-sharded", make("qwen3_moe", 4, 2, True), shard_in="60KB", shard_out=50_000)
        for rope in tiny_models.ROPE_TYPES:
            check(executable, work, f"llama-{rope}", tiny_models.make_rope_config(rope))
            check(executable, work, f"llama-{rope}-transformers4", tiny_models.make_rope_config(rope), old_config=True)
        for family in ("qwen3", "llama"):
            check(executable, work, f"{family}-biases", with_biases(make(family, 4, 2, False)))


main()
