"""Configurations as they are published, against transformers: each loads with all of its fields, and gives its log-probs.

published_configs.jsonl holds the facts of 110 published config.json files with their sources, one a line. Left out there:
auto_map, the content of vision_config, and what quantization_config lists beside the format; lists with an entry a layer
are cut to eight. Here sizes are shrunk (layers, heads, hidden sizes, experts, vocabulary, windows); every other field keeps
its value. Weights are drawn and saved by transformers. Multimodal models are also saved again by Ringside and must give
transformers the same logits.

Weights in formats that cannot be read are refused by a true reason; the rest of such a file is compared without that field.

Where transformers 5.9 computes something else than what a model was published with, it is told: RoPE of OLMo 3's windowed
layers is not scaled (https://github.com/huggingface/transformers/pull/45945); MiniMax-M2's rotary_dim is a partial_rotary_factor.

Usage: published_configs.py DIRECTORY_LOGPROBS_EXECUTABLE [all | TEXT...]: a sample without further words, which takes seconds; all; or
those whose name holds a TEXT.
"""

import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import tiny_models  # noqa: E402  (found through the line above)

transformers.utils.logging.set_verbosity_error()

TABLE = pathlib.Path(__file__).with_name("published_configs.jsonl")
LOGPROBS = 1e-4
LENGTHS = [2, 9, 40]
WINDOW = 8
STD = 0.1  # of weights: what enters a layer and what it adds are about as large
# One of each kind of file that was refused once, and of each kind of name and tensor on disk.
SAMPLE = ("HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen2.5-7B-Instruct-1M", "Qwen/Qwen2.5-VL-7B-Instruct",
          "google/gemma-3-4b-it", "mistralai/Mistral-Small-3.1-24B-Instruct-2503", "moonshotai/Kimi-K2-Instruct",
          "Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3.5-35B-A3B", "MiniMaxAI/MiniMax-M2.5", "allenai/Olmo-3.1-32B-Instruct",
          "ibm-granite/granite-3.3-8b-instruct", "phi-4", "Qwen/Qwen3-Coder-30B-A3B-Instruct",
          "Qwen/Qwen3-Next-80B-A3B-Instruct", "nvidia/Llama-3.1-70B-Instruct-FP8")
READABLE = ("mxfp4", "fp8")  # formats of weights


def shrunk_rope(rope, head_dim: int, turned: float):
    """RoPE parameters with lists of the new lengths."""
    if not isinstance(rope, dict):
        return rope
    pairs = int(head_dim * rope.get("partial_rotary_factor", turned)) // 2
    rope = {key: shrunk_rope(value, head_dim, turned) for key, value in rope.items()}
    for key in ("short_factor", "long_factor"):
        if key in rope:
            rope[key] = rope[key][:pairs]
    if "mrope_section" in rope:
        rope["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return rope


def shrink_heads(text: dict) -> None:
    heads, kv = text["num_attention_heads"], text.get("num_key_value_heads") or text["num_attention_heads"]
    if "kv_lora_rank" in text:
        text.update(num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=12, qk_nope_head_dim=12, qk_rope_head_dim=4,
                    v_head_dim=10)
        text["q_lora_rank"] = text["q_lora_rank"] and 20
        text["hidden_size"] = 48
        return
    small_kv = min(kv, 2)
    small_heads = small_kv * min(heads // kv, 3)
    text["num_attention_heads"] = small_heads
    if "num_key_value_heads" in text:
        text["num_key_value_heads"] = small_kv
    if text.get("head_dim") is not None:
        text["head_dim"] = 16
        text["hidden_size"] = 16 * small_heads if text["hidden_size"] % heads == 0 else 80
        text["hidden_size"] = max(text["hidden_size"], 32)
    else:
        text["hidden_size"] = 16 * small_heads
    if "rotary_dim" in text:
        text["rotary_dim"] = 8


def shrink_experts(text: dict) -> None:
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if text.get(key):
            text[key] = 16
    if "num_experts_per_tok" in text:
        text["num_experts_per_tok"] = 3
    if "experts_per_token" in text:
        text["experts_per_token"] = 3
    for key in ("moe_intermediate_size", "shared_expert_intermediate_size"):
        if text.get(key):
            text[key] = 24
    if "first_k_dense_replace" in text:
        text["first_k_dense_replace"] = min(text["first_k_dense_replace"], 1)


def shrink_ids(fields: dict) -> None:
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        if isinstance(fields.get(key), int):
            fields[key] %= tiny_models.VOCAB
        elif isinstance(fields.get(key), list):
            fields[key] = [value % tiny_models.VOCAB for value in fields[key]]


# What a sparse file leaves out and transformers fills in.
CLASS_SIZES = {"gemma3_text": dict(num_attention_heads=8, num_key_value_heads=4, head_dim=256)}


def shrunk(config: dict) -> dict:
    """The published fields with small sizes."""
    config = copy.deepcopy(config)
    text = config.get("text_config", config)
    for key, value in CLASS_SIZES.get(text["model_type"], {}).items():
        text.setdefault(key, value)
    text["num_hidden_layers"] = 8 if "gemma3" in text["model_type"] else 4
    for key in ("layer_types", "attn_type_list", "no_rope_layers"):
        if text.get(key):
            text[key] = text[key][: text["num_hidden_layers"]]
    turned = text.get("partial_rotary_factor", 1.0)
    shrink_heads(text)
    shrink_experts(text)
    text["vocab_size"] = tiny_models.VOCAB
    if "intermediate_size" in text:
        text["intermediate_size"] = 96
    if text.get("sliding_window"):
        text["sliding_window"] = WINDOW
    for key, size in dict(linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=12).items():
        if key in text:
            text[key] = size
    if "linear_num_value_heads" in text:
        text["linear_num_value_heads"] = 4
    for key in ("rope_scaling", "rope_parameters"):
        if text.get(key):
            text[key] = shrunk_rope(text[key], text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"], turned)
    for fields in (config, text):
        shrink_ids(fields)
    if "vision_config" in config:
        config["vision_config"] = small_vision(config["model_type"], text["hidden_size"])
    return config


def small_vision(model_type: str, hidden: int) -> dict:
    if model_type in ("gemma3", "mistral3"):
        return dict(model_type="siglip_vision_model" if model_type == "gemma3" else "pixtral", hidden_size=16,
                    intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=224, patch_size=14)
    qwen = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=hidden)
    return qwen | (dict(fullatt_block_indexes=[0]) if model_type == "qwen2_5_vl" else
                   dict(patch_size=4, num_position_embeddings=16) |
                   (dict(deepstack_visual_indexes=[0]) if model_type.startswith("qwen3_vl") else {}))


def transformers_config(config: dict):
    """The class's configuration of such fields."""
    fields = {key: value for key, value in copy.deepcopy(config).items() if key not in ("quantization_config", "architectures")}
    model_type = {"kimi_k2": "deepseek_v3"}.get(fields.pop("model_type"), config["model_type"])
    if model_type == "minimax_m2":
        fields["partial_rotary_factor"] = fields["rotary_dim"] / fields["head_dim"]
    if model_type == "mistral3":
        fields.setdefault("tie_word_embeddings", False)  # the published weights are not tied
    return transformers.CONFIG_MAPPING[model_type].from_dict(fields)


def unscaled_in_windows(model) -> None:
    """Makes transformers' OLMo 3 turn the heads of windowed layers without scaling."""
    config = copy.deepcopy(model.config)
    config.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}
    plain = type(model.model.rotary_emb)(config)

    def hook(layer, args, kwargs):
        positions = torch.arange(args[0].shape[1])[None]
        return args, kwargs | {"position_embeddings": plain(args[0], positions)}

    for layer, kind in zip(model.model.layers, model.config.layer_types, strict=True):
        if kind == "sliding_attention":
            layer.register_forward_pre_hook(hook, with_kwargs=True)


def make(config: dict):
    model = tiny_models.make_model(transformers_config(config), seed=5, std=STD)
    if config["model_type"] == "olmo3":
        unscaled_in_windows(model)
    return model


@torch.no_grad()
def expected_logprobs(model, documents) -> torch.Tensor:
    results = []
    for ids in documents:
        scores = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        results.append(scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].double())
    return torch.cat(results)


class Ringside:
    """The process that answers requests, a line each."""

    def __init__(self, executable: str):
        self._process = subprocess.Popen([executable], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def logprobs(self, folder: pathlib.Path, documents, **more) -> torch.Tensor:
        """Of all documents. Raises RuntimeError with Ringside's message."""
        self._process.stdin.write(json.dumps({"model": str(folder), "ids": documents} | more) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return torch.tensor(answer["logprobs"], dtype=torch.float64)


def format_problem(entry: dict) -> str:
    """The format of weights that cannot be read; "": they can."""
    outer = entry["config"]
    for fields in (outer, outer.get("text_config", {})):
        method = (fields.get("quantization_config") or {}).get("quant_method", "")
        if method and method not in READABLE:
            return method
    return (entry.get("hf_quant_config") or {}).get("quantization", {}).get("quant_algo") or ""


def check_refusal(ringside: Ringside, folder: pathlib.Path, entry: dict, config: dict) -> str:
    """What is wrong with the refusal of a file whose weights cannot be read."""
    (folder / "config.json").write_text(json.dumps(config))
    if "hf_quant_config" in entry:
        (folder / "hf_quant_config.json").write_text(json.dumps(entry["hf_quant_config"]))
    message = ""
    try:
        ringside.logprobs(folder, [[1, 2]])
    except RuntimeError as error:
        message = str(error)
    (folder / "hf_quant_config.json").unlink(missing_ok=True)
    if "'quantization_config'" not in message or format_problem(entry) not in message:
        return f"not refused for {format_problem(entry)}: {message}"
    return f"also refused: {message}" if "is a field that" in message else ""


@torch.no_grad()
def resave_problem(folder: pathlib.Path, target: pathlib.Path, model, ids) -> str:
    """What is wrong with a multimodal model that Ringside saved again as `target`."""
    def named(file: pathlib.Path) -> set[str]:  # experts may be one by one or stacked
        return {name for name in safetensors.torch.load_file(file / "model.safetensors") if ".mlp.experts." not in name
                and not any(part in name for part in ("visual", "vision_tower", "multi_modal"))}

    again, info = type(model).from_pretrained(target, dtype=torch.float32, output_loading_info=True,
                                              experts_implementation="eager")
    text = [name for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in info[kind]
            if not any(part in str(name) for part in ("visual", "vision", "multi_modal"))]
    again.load_state_dict({name: value for name, value in model.state_dict().items() if
                           any(part in name for part in ("visual", "vision", "multi_modal"))}, strict=False)
    again.eval()
    difference = (again(input_ids=ids).logits - model(input_ids=ids).logits).abs().max().item()
    differing = named(target) ^ named(folder)
    other = f"names differ: {sorted(differing)[:4]}" if differing else ""
    return f"{text} {other}" if text or other else ("" if difference == 0 else f"logits differ by {difference:.1e}")


def check(ringside: Ringside, work: pathlib.Path, entry: dict, documents) -> tuple[float, str]:
    """Largest difference of log-probs, and what is wrong."""
    config = shrunk(entry["config"])
    model = make(config)
    folder = work / "model"
    tiny_models.save(model, folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if problem := format_problem(entry) and check_refusal(ringside, folder, entry, config):
        return float("nan"), problem
    for fields in (config, config.get("text_config", {})):
        if (fields.get("quantization_config") or {}).get("quant_method") not in READABLE:
            fields.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config))
    # Short documents for transformers: it chooses longrope's factors by the length.
    more = {"max_document_tokens": 64} if "longrope" in json.dumps(config) else {}
    if "vision_config" in config:
        more["save_to"] = str(work / "again")
    try:
        found = ringside.logprobs(folder, documents, **more)
    except RuntimeError as error:
        return float("nan"), str(error)
    worst = (found - expected_logprobs(model, documents)).abs().max().item()
    problem = "" if worst <= LOGPROBS else "log-probs differ"
    if not problem and "vision_config" in config:
        problem = resave_problem(folder, work / "again", model, torch.tensor([documents[-1]]))
    return worst, problem


def main() -> int:
    torch.set_num_threads(1)
    executable, *names = sys.argv[1:]
    entries = [json.loads(line) for line in TABLE.read_text().splitlines()]
    if names != ["all"]:
        entries = [entry for entry in entries if (any(name in entry["model"] for name in names) if names else
                                                  entry["model"] in SAMPLE)]
    chooser = random.Random(11)
    documents = [[chooser.randrange(tiny_models.VOCAB) for _ in range(length)] for length in LENGTHS]
    ringside = Ringside(executable)
    failures, refused, largest = 0, {}, 0.0
    for entry in entries:
        with tempfile.TemporaryDirectory() as folder:
            worst, problem = check(ringside, pathlib.Path(folder), entry, documents)
        verdict = f"refused: {format_problem(entry)}" if format_problem(entry) else "accepted"
        refused[verdict] = refused.get(verdict, 0) + 1
        largest = max(largest, worst)
        failures += bool(problem)
        print(f"{entry['model']:<50}{entry['config']['model_type']:<14}{verdict:<18}{worst:>9.1e}"
              f"{'  FAIL ' + problem if problem else ''}", flush=True)
    print(f"{len(entries)} files: {refused}; largest difference {largest:.1e}; {failures} failures")
    return 1 if failures or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
