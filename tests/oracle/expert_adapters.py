"""Low-rank adapters of experts against PEFT's `target_parameters`: log-probs, gradients, and directories that each reads.

Guards the names that PEFT gives the factors of one and of two parameters, the order of experts in them, matrices that are
stored input-first (GPT-OSS), the gradient of each expert at layouts that divide experts, matrices and shards, and the
merge. AdamW's eps is 1, so that a factor's change is in proportion to its gradient.
"""

import contextlib
import copy
import pathlib
import sys
import tempfile
from unittest import mock

import peft
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm

import hf_logprobs
import lora
import ringside_cli
import tiny_models

EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
# family, target_modules, target_parameters
MODELS = [
    ("qwen3_moe", ["q_proj", "o_proj"], EXPERTS),
    ("qwen3_moe", [], EXPERTS[1:]),
    ("deepseek_v3", [], EXPERTS[:1]),
    ("gpt_oss", ["v_proj"], EXPERTS),
]
SHARD_2 = ["--nproc", "2", "parallel.data_parallel_shard_size=2"]
LAYOUTS = {
    "shard 2, experts 2": [*SHARD_2, "parallel.expert_parallel_size=2"],
    "tensor 2": ringside_cli.layout(tensor=2),
    "shard 2, tensor 2, experts 4": ["--nproc", "4", "parallel.data_parallel_shard_size=2",
                                     "parallel.tensor_parallel_size=2", "parallel.expert_parallel_size=4"],
    "ulysses 2, experts 2": [*ringside_cli.layout(ulysses=2), "parallel.expert_parallel_size=2"],
}
AS_PROCESSES = ("shard 2, experts 2",)
# GPT-OSS' experts are one tensor, which is not divided.
WITHOUT_EXPERT_RANKS = {"shard 2": SHARD_2, "tensor 2": LAYOUTS["tensor 2"]}
TOLERANCE = 1e-10
STEPS, EPS = 2, 1.0


@contextlib.contextmanager
def norms_in_own_dtype():
    with hf_logprobs.norms_in_own_dtype(), mock.patch.object(GptOssRMSNorm, "forward", hf_logprobs._norm_in_own_dtype):
        yield


def make_adapted(model, modules: list[str], parameters: list[str], seed: int):
    """`model` with adapters whose A and B are both drawn, in fp64."""
    config = peft.LoraConfig(r=lora.RANK, lora_alpha=lora.ALPHA, target_modules=modules, target_parameters=parameters,
                             task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return adapted.eval().double()


def check_model(folder: pathlib.Path, family: str, modules: list[str], parameters: list[str]) -> int:
    title = f"{family}, {' and '.join([*modules, *parameters])}"
    plain = family in ("qwen3_moe", "deepseek_v3")
    config = tiny_models.make_config(family, 4, 2, False) if plain else tiny_models.make_family(family)
    model = tiny_models.make_model(config, 5, std=0.08)
    tiny_models.save(model, folder / "model")
    tokenizer = tiny_models.make_tokenizer()
    (folder / "sft.jsonl").write_text(
        "".join(f'{{"prompt": "{p}", "completion": "{c}"}}\n' for p, c in lora.EXAMPLES)
    )
    start_dir = folder / "start"
    adapted = make_adapted(model, modules, parameters, 9)
    adapted.save_pretrained(start_dir)
    documents = [tokenizer.encode("Hello, adapters of experts!"), tokenizer.encode("xy")]
    (folder / "in.jsonl").write_text("".join(f'{{"ids": {ids}}}\n' for ids in documents))
    expected = hf_logprobs.reference_logprobs(adapted, documents, torch.float64)
    if lora.largest(hf_logprobs.reference_logprobs(model, documents, torch.float64), expected) < 0.01:
        raise ValueError("the adapters change nothing")
    words = ["model.dtype=float64", "model.fp32_norms=false"]
    found = hf_logprobs.our_logprobs(folder, folder / "model", expected, ["--adapter", start_dir, *words])
    failures = lora.check(f"log-probs, {title}", lora.largest(found, expected), TOLERANCE)

    start = lora.load_factors(start_dir)
    lora.train_peft(adapted, tokenizer, steps=STEPS, eps=EPS)
    adapted.save_pretrained(folder / "end")
    after = lora.load_factors(folder / "end")
    words = [*lora.recipe_words(folder, "float64", start_dir, [*modules, *parameters]), f"optimizer.eps={EPS}"]
    checkpoint = lora.train(folder, "one", words, STEPS)
    change = lora.relative_to_change(lora.load_factors(checkpoint / "adapter"), after, start)
    failures += lora.check(f"change in {STEPS} steps, {title}", change, TOLERANCE)
    ours = peft.PeftModel.from_pretrained(copy.deepcopy(model).double(), checkpoint / "adapter").eval()
    expected = hf_logprobs.reference_logprobs(adapted, documents, torch.float64)
    found = hf_logprobs.reference_logprobs(ours, documents, torch.float64)
    failures += lora.check(f"our directory in PEFT, {title}", lora.largest(found, expected), TOLERANCE)
    merged = hf_logprobs.our_logprobs(folder, checkpoint, expected, ["model.dtype=float64", "model.fp32_norms=false"])
    failures += lora.check(f"merged, {title}", lora.largest(merged, expected), lora.MERGE_TOLERANCE)
    for name, layout in (LAYOUTS if plain else WITHOUT_EXPERT_RANKS).items():
        run = ringside_cli.run if name in AS_PROCESSES and modules else ringside_cli.run_in_memory
        trained = lora.load_factors(lora.train(folder, name, [*words, *layout], STEPS, run) / "adapter")
        change = lora.relative_to_change(trained, after, start)
        failures += lora.check(f"change, {name}, {title}", change, TOLERANCE)
    return failures


def main() -> int:
    # The first cos, exp or log on two threads at once can be a coarse one: sp/mesh/vector_math.h.
    torch.set_num_threads(1)
    failures = 0
    for model in MODELS:
        with tempfile.TemporaryDirectory() as name, norms_in_own_dtype():
            failures += check_model(pathlib.Path(name), *model)
    if failures:
        print(f"{failures} comparisons beyond their tolerance", file=sys.stderr)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
