"""Low-rank adapters against PEFT: log-probs, training, and directories that each reads from the other.

Guards the factors' places in fused projections, a packed base (nf4) that trains otherwise on several ranks, the scale, the gradient through a frozen base, the names and
fields of PEFT's files, the merge, and the sum of the adapters' gradient over every layout of ranks. The ranks of most
runs are threads of one process.
"""

import copy
import pathlib
import random
import sys
import tempfile

import peft
import safetensors.torch
import torch

import hf_logprobs
import own_dtype
import ringside_cli
import tiny_models

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# family, query heads, KV heads, tied, target_modules of PEFT. Without heads: one of tiny_models.FAMILIES
MODELS = [
    ("qwen3", 4, 2, True, "all-linear"),
    ("qwen2", 5, 5, False, ["q_proj", "v_proj", "down_proj"]),
    ("llama", 6, 2, False, ["k_proj", "o_proj", "up_proj"]),
    ("deepseek_v3", 4, 4, False, ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]),
    ("qwen3_5", None, None, False, ["k_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
                                    "out_proj"]),
    ("qwen3_next", None, None, False, ["q_proj", "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"]),
]
LOGPROB_TOLERANCE = 1e-5
MERGE_TOLERANCE = 1e-6
TRAIN_TOLERANCE = 1e-4  # of the change of each factor
LAYOUT_TOLERANCE = 1e-10
STEPS, LEARNING_RATE, WEIGHT_DECAY, RANK, ALPHA = 5, 1e-2, 0.01, 4, 6
EXAMPLES = [("abc", "defgh"), ("Hello", " world"), ("xy", "zzyx"), ("12", "3456789")]
LAYOUTS = {
    "ulysses 2": ringside_cli.layout(ulysses=2),
    "ring 2": ringside_cli.layout(ring=2),
    "dp 2": ringside_cli.layout(data=2),
    "ulysses 2, asynchronous": [*ringside_cli.layout(ulysses=2), "sp.async_ulysses=true"],
    "recomputed": ["model.recompute=full"],
}
PACKED_LAYOUTS = {
    "ulysses 2": LAYOUTS["ulysses 2"],
    "ring 2": LAYOUTS["ring 2"],
    "ring 2, ulysses 2": ringside_cli.layout(ring=2, ulysses=2),
    "dp 2": LAYOUTS["dp 2"],
    "recomputed": LAYOUTS["recomputed"],
}
AS_PROCESSES = ("ulysses 2", "dp 2")


def make_adapted(model, targets, seed: int):
    """`model` with adapters whose A and B are both drawn, so that both act and learn."""
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return adapted.eval()


def check(name: str, value: float, tolerance: float) -> int:
    print(f"{name:<60}{value:12.3g}   (at most {tolerance:g})", flush=True)
    return int(not value <= tolerance)


def largest(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return hf_logprobs.distances(found, expected)[0]


def check_logprobs(folder: pathlib.Path) -> int:
    failures = 0
    chooser = random.Random(3)
    documents = [[chooser.randrange(2, tiny_models.VOCAB) for _ in range(n)] for n in (2, 7, 65, 200)]
    (folder / "in.jsonl").write_text("".join(f'{{"ids": {ids}}}\n' for ids in documents))
    for family, heads, kv_heads, tied, targets in MODELS:
        # Narrower than hf_logprobs' models: their fp32 rounding alone exceeds the tolerance here.
        config = tiny_models.make_config(family, heads, kv_heads, tied) if heads else tiny_models.make_family(family)
        model = tiny_models.make_model(config, 5, std=0.08)
        model_dir = tiny_models.save(model, folder / f"model-{family}")
        adapted = make_adapted(model, targets, 7)
        adapter_dir = folder / f"adapter-{family}"
        adapted.save_pretrained(adapter_dir)
        plain = hf_logprobs.reference_logprobs(model, documents, torch.float32)
        for dtype, tolerance in (("float32", LOGPROB_TOLERANCE), ("float64", 2e-6)):
            # transformers rounds the delta rule of float64 models to float32.
            prepare = own_dtype.compute_delta_nets_in_own_dtype if dtype == "float64" else None
            expected = hf_logprobs.reference_logprobs(adapted, documents, getattr(torch, dtype), prepare)
            if largest(plain, expected) < 0.01:
                raise ValueError("the adapters change nothing")
            for layout in ("1", "ulysses 2"):
                words = [f"model.dtype={dtype}", *hf_logprobs.LAYOUTS[layout]]
                first = (family, dtype) == (MODELS[0][0], "float32")
                found = hf_logprobs.our_logprobs(
                    folder, model_dir, expected, ["--adapter", adapter_dir, *words],
                    ringside_cli.run if first else ringside_cli.run_in_memory,
                )
                failures += check(
                    f"log-probs, {family}, {dtype}, layout {layout}", largest(found, expected), tolerance
                )
        merged_dir = tiny_models.save(
            copy.deepcopy(adapted).merge_and_unload(), folder / f"merged-{family}"
        )
        unmerged = hf_logprobs.our_logprobs(
            folder, model_dir, plain, ["--adapter", adapter_dir, "model.dtype=float32"]
        )
        merged = hf_logprobs.our_logprobs(folder, merged_dir, plain, ["model.dtype=float32"])
        failures += check(f"PEFT's merge, {family}", largest(merged, unmerged), LOGPROB_TOLERANCE)
    return failures


def recipe_words(folder: pathlib.Path, dtype: str, adapter: pathlib.Path, targets: list[str]) -> list[str]:
    return [
        "algorithm.task=sft",
        f"model.path={folder / 'model'}",
        f"model.dtype={dtype}",
        f"model.fp32_norms={'true' if dtype == 'float32' else 'false'}",
        f"data.sft={folder / 'sft.jsonl'}",
        "data.shuffle=false",
        f"train.batch_size={len(EXAMPLES)}",
        "train.tokens_per_micro_batch=24",
        f"optimizer.learning_rate={LEARNING_RATE}",
        f"optimizer.weight_decay={WEIGHT_DECAY}",
        f"lora.rank={RANK}",
        f"lora.alpha={ALPHA}",
        f"lora.target_modules={','.join(targets)}",
        f"lora.path={adapter}",
        "checkpoint.every_minutes=0",
    ]


def train(
    folder: pathlib.Path, name: str, words: list[str], steps: int = STEPS, run=ringside_cli.run_in_memory
) -> pathlib.Path:
    """Trains and returns the final checkpoint."""
    run_dir = folder / f"run-{name}".replace(" ", "-").replace(",", "")
    run("train", "--steps", steps, "--run-dir", run_dir, *words)
    return run_dir / "checkpoint-final"


def load_factors(directory: pathlib.Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(directory / "adapter_model.safetensors")


def train_peft(adapted, tokenizer, steps: int = STEPS, eps: float = 1e-8) -> None:
    """AdamW on all EXAMPLES, as `ringside train` takes them."""
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, eps=eps)
    documents = []
    for prompt, completion in EXAMPLES:
        head = tokenizer.encode(prompt)
        documents.append((head + tokenizer.encode(completion) + [tiny_models.EOS], len(head)))
    learned = sum(len(ids) - start for ids, start in documents)
    for _ in range(steps):
        optimizer.zero_grad()
        for ids, start in documents:
            scores = adapted(torch.tensor([ids])).logits[0, start - 1 : -1].log_softmax(-1)
            target = torch.tensor(ids[start:])[:, None]
            (-scores.gather(1, target).sum() / learned).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()


def relative_to_change(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], start: dict[str, torch.Tensor]
) -> float:
    """Largest distance of a factor from the expected one, as a part of how far that moved."""
    if found.keys() != expected.keys():
        raise ValueError(f"factors {sorted(found)}, expected {sorted(expected)}")
    return max(
        ((found[name].double() - expected[name].double()).norm()
        / (expected[name].double() - start[name].double()).norm()).item()
        for name in expected
    )


def trained_beside_peft(folder: pathlib.Path, model, tokenizer, targets):
    """The model as PEFT trained it for STEPS, our checkpoint of the same run, the factors that both began with, and how far
    ours are from PEFT's as a part of PEFT's change."""
    start_dir, end_dir = folder / "start", folder / "end"
    adapted = make_adapted(model, targets, 9)
    adapted.save_pretrained(start_dir)
    # In fp64: AdamW turns the rounding of a gradient near zero into steps of full size, so fp32 runs part by an
    # amount that depends on the processor.
    adapted = adapted.double()
    train_peft(adapted, tokenizer)
    adapted = adapted.float()
    adapted.save_pretrained(end_dir)
    start, expected = load_factors(start_dir), load_factors(end_dir)
    words = [*recipe_words(folder, "float64", start_dir, targets), "model.fp32_norms=true"]
    checkpoint = train(folder, "peft", words)
    return adapted, checkpoint, start, relative_to_change(load_factors(checkpoint / "adapter"), expected, start)


def check_training(folder: pathlib.Path) -> int:
    failures = 0
    model = tiny_models.make_model(tiny_models.make_config("qwen3", 4, 2, True), 5, std=0.08)
    tiny_models.save(model, folder / "model")
    tokenizer = tiny_models.make_tokenizer()
    (folder / "sft.jsonl").write_text(
        "".join(f'{{"prompt": "{p}", "completion": "{c}"}}\n' for p, c in EXAMPLES)
    )
    adapted, checkpoint, start, change = trained_beside_peft(folder, model, tokenizer, ALL)
    failures += check(f"{STEPS} AdamW steps, part of the change", change, TRAIN_TOLERANCE)

    # Our directory in PEFT, and the merged model beside it.
    base = copy.deepcopy(model)
    ours = peft.PeftModel.from_pretrained(base, checkpoint / "adapter").eval()
    documents = [tokenizer.encode("Hello, adapters of two programs!")]
    in_peft = hf_logprobs.reference_logprobs(ours, documents, torch.float32)
    in_peft_trained = hf_logprobs.reference_logprobs(adapted, documents, torch.float32)
    failures += check("our directory in PEFT", largest(in_peft, in_peft_trained), 1e-4)
    (folder / "in.jsonl").write_text(f'{{"ids": {documents[0]}}}\n')
    adapter = ["--adapter", checkpoint / "adapter"]
    # In fp64, so that the merge is compared and not roundings of the forward.
    merged = hf_logprobs.our_logprobs(folder, checkpoint, in_peft, ["model.dtype=float64"])
    exact = hf_logprobs.our_logprobs(folder, folder / "model", in_peft, [*adapter, "model.dtype=float64"])
    failures += check("merged against unmerged log-probs", largest(merged, exact), MERGE_TOLERANCE)
    unmerged = hf_logprobs.our_logprobs(folder, folder / "model", in_peft, [*adapter, "model.dtype=float32"])
    failures += check("unmerged log-probs against PEFT's", largest(unmerged, in_peft), LOGPROB_TOLERANCE)
    return failures + check_layouts(folder, folder / "start", start)


def check_hybrid_training(folder: pathlib.Path) -> int:
    """Adapters of gated delta nets beside attention: factors after STEPS, and our directory in PEFT."""
    family, _, _, _, targets = next(model for model in MODELS if model[0] == "qwen3_5")
    model = tiny_models.make_model(tiny_models.make_family(family), 5, std=0.08)
    folder = folder / "hybrid"
    folder.mkdir()
    tiny_models.save(model, folder / "model")
    (folder / "sft.jsonl").write_text("".join(f'{{"prompt": "{p}", "completion": "{c}"}}\n' for p, c in EXAMPLES))
    tokenizer = tiny_models.make_tokenizer()
    adapted, checkpoint, _, change = trained_beside_peft(folder, model, tokenizer, targets)
    failures = check(f"{STEPS} AdamW steps of {family}, part of the change", change, TRAIN_TOLERANCE)
    ours = peft.PeftModel.from_pretrained(copy.deepcopy(model), checkpoint / "adapter").eval()
    documents = [tokenizer.encode("Hello, adapters of two programs!")]
    found = hf_logprobs.reference_logprobs(ours, documents, torch.float32)
    in_peft = hf_logprobs.reference_logprobs(adapted, documents, torch.float32)
    return failures + check(f"our directory of {family} in PEFT", largest(found, in_peft), 1e-4)


def compare_layouts(
    folder: pathlib.Path, words: list[str], one: dict[str, torch.Tensor], layouts: dict[str, list[str]]
) -> int:
    """Trains at each layout; the factors must be those of one rank."""
    failures = 0
    packed = "nf4 " if "lora.base=nf4" in words else ""
    for name, layout in layouts.items():
        run = ringside_cli.run if not packed and name in AS_PROCESSES else ringside_cli.run_in_memory
        found = load_factors(train(folder, packed + name, [*words, *layout], run=run) / "adapter")
        difference = max((found[key] - one[key]).abs().max().item() for key in one)
        failures += check(f"factors after {STEPS} steps, {packed}{name}", difference, LAYOUT_TOLERANCE)
    return failures


def check_layouts(folder: pathlib.Path, start_dir: pathlib.Path, start: dict[str, torch.Tensor]) -> int:
    failures = 0
    words = recipe_words(folder, "float64", start_dir, ALL)
    one = load_factors(train(folder, "one", words) / "adapter")
    failures += compare_layouts(folder, words, one, LAYOUTS)
    # QLoRA: the packed base is the same on every rank, and another than the whole one.
    packed = [*words, "lora.base=nf4"]
    packed_one = load_factors(train(folder, "one nf4", packed) / "adapter")
    if not 0.05 < relative_to_change(packed_one, one, start) < 1:
        raise ValueError("nf4 trains as the whole base does, or as nothing")
    failures += compare_layouts(folder, packed, packed_one, PACKED_LAYOUTS)
    # A run that stops and goes on, at another layout.
    train(folder, "resumed", [*words, *ringside_cli.layout(ulysses=2)], steps=3)
    found = load_factors(train(folder, "resumed", words) / "adapter")
    difference = max((found[key] - one[key]).abs().max().item() for key in one)
    failures += check(f"factors of a resumed run after {STEPS} steps", difference, LAYOUT_TOLERANCE)
    return failures


def main() -> int:
    # The first cos, exp or log on two threads at once can be a coarse one: sp/mesh/vector_math.h.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        failures = check_logprobs(folder) + check_training(folder) + check_hybrid_training(folder)
    if failures:
        print(f"{failures} comparisons beyond their tolerance", file=sys.stderr)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
