"""`ringside logprobs` against transformers on random Qwen3, Qwen3-MoE, DeepSeek-V3, Qwen2.5, Mistral and Llama models.

Guards the decoder (biases, norms, RoPE and its scaling, tied heads, uneven head counts) and every
sequence- and tensor-parallel layout of it, of stages too: each log-prob of documents of 2 to 1500 tokens must equal
transformers' in fp32 and in fp64.

transformers evaluates RMSNorm in fp32 whatever the model's dtype, and `ringside logprobs` does the same by
default. The rows "float64 norms" set model.fp32_norms=false and compare with transformers whose norms
are evaluated in fp64: what training in float64 computes.

The ranks of most runs are threads of one process. Those of the first model and of one with divided experts are
processes in fp32.

In bf16 two correct programs round differently. The rows "bfloat16" show our largest distance from
transformers' fp64 log-probs as a multiple of the distance of transformers' own bf16 log-probs from them.
"""

import contextlib
import copy
import json
import pathlib
import random
import sys
import tempfile
from unittest import mock

import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm, DeepseekV3TopkRouter
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm, Qwen3MoeTopKRouter

import ringside_cli
import tiny_models

# dtype, further overrides, largest difference allowed
CASES = {
    "float32": ("float32", [], 2e-4),
    "float64": ("float64", [], 2e-6),
    "float64 norms": ("float64", ["model.fp32_norms=false"], 1e-10),
}
# Of the distance of transformers' bf16 log-probs from its fp64 ones.
BFLOAT16_BOUND = 1.5
LENGTHS = [2, 3, 7, 64, 65, 129, 500, 1500]
LAYOUTS = {
    "1": ringside_cli.layout(),
    "ulysses 2": ringside_cli.layout(ulysses=2),
    "ring 2": ringside_cli.layout(ring=2),
    "ring 2 x ulysses 2": ringside_cli.layout(ring=2, ulysses=2),
    "ulysses 2 x tensor 2": ringside_cli.layout(ulysses=2, tensor=2),
    "pipeline 2 x tensor 2": ringside_cli.layout(pipeline=2, tensor=2),
}
# Of the second model with experts, which are spread over the ranks: 5 experts, uneven shares.
EXPERTS = {
    "ulysses 2": 2,
    "ring 2": 2,
    "ring 2 x ulysses 2": 4,
    "ulysses 2 x tensor 2": 4,
    "pipeline 2 x tensor 2": 2,
}
# Models whose ranks are processes in the first case.
AS_PROCESSES = ("qwen3 4/2 tied", "qwen3_moe 6/2 tied")
# family, query heads, KV heads, tied
MODELS = [
    ("qwen3", 4, 2, True),
    ("qwen3", 6, 2, False),
    ("qwen2", 4, 2, False),
    ("qwen2", 5, 5, True),
    ("llama", 6, 2, False),
    ("llama", 5, 5, True),
    ("mistral", 4, 2, False),
    ("qwen3_moe", 4, 2, False),
    ("qwen3_moe", 6, 2, True),
    ("deepseek_v3", 4, 4, False),
]


def _norm_in_own_dtype(self, hidden_states):
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


def _route_in_own_dtype(self, hidden_states):
    logits = torch.nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
    weights, experts = logits.softmax(-1).topk(self.top_k, dim=-1)
    if self.norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights, experts


def _logits_in_own_dtype(self, hidden_states):
    return torch.nn.functional.linear(hidden_states.reshape(-1, hidden_states.shape[-1]), self.weight)


@contextlib.contextmanager
def norms_in_own_dtype():
    """Within it, transformers' RMSNorm and router compute in their input's dtype instead of fp32."""
    with contextlib.ExitStack() as stack:
        for norm in (DeepseekV3RMSNorm, LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm, Qwen3MoeRMSNorm):
            stack.enter_context(mock.patch.object(norm, "forward", _norm_in_own_dtype))
        stack.enter_context(mock.patch.object(Qwen3MoeTopKRouter, "forward", _route_in_own_dtype))
        stack.enter_context(mock.patch.object(DeepseekV3TopkRouter, "forward", _logits_in_own_dtype))
        yield


@torch.no_grad()
def reference_logprobs(model, documents: list[list[int]], dtype: torch.dtype, prepare=None) -> list[torch.Tensor]:
    """transformers' log-prob of each next token, one [len - 1] float64 tensor a document. prepare: gets the model in that dtype."""
    model = copy.deepcopy(model).to(dtype)
    if prepare:
        prepare(model)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    results = []
    for ids in documents:
        scores = model(torch.tensor([ids])).logits[0, :-1].to(wide).log_softmax(-1)
        results.append(scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].double())
    return results


def distances(found: list[torch.Tensor], expected: list[torch.Tensor]) -> tuple[float, float]:
    """Largest and mean absolute difference over all documents."""
    both = (torch.cat(found) - torch.cat(expected)).abs()
    return both.max().item(), both.mean().item()


def read_logprobs(output: pathlib.Path, expected: list[torch.Tensor]) -> list[torch.Tensor]:
    """What `ringside logprobs` wrote, in the shapes of `expected`."""
    found = [torch.tensor(line["logprobs"], dtype=torch.float64) for line in ringside_cli.read_lines(output)]
    if [len(values) for values in found] != [len(values) for values in expected]:
        raise ValueError(
            f"{output}: {[len(values) for values in found]} log-probs a line, expected "
            f"{[len(values) for values in expected]}"
        )
    return found


def our_logprobs(
    folder: pathlib.Path, model_dir: pathlib.Path, expected: list[torch.Tensor], words: list[str],
    run=ringside_cli.run_in_memory,
) -> list[torch.Tensor]:
    output = folder / "out.jsonl"
    files = ["--model", model_dir, "--input", folder / "in.jsonl", "--output", output]
    run("logprobs", *files, *words)
    return read_logprobs(output, expected)


def layouts_of(name: str) -> list[list[str]]:
    """The words of each of LAYOUTS."""
    experts = EXPERTS if name.startswith("qwen3_moe 6/2") else {}
    return [
        [*words, f"parallel.expert_parallel_size={experts.get(layout, 1)}"]
        for layout, words in LAYOUTS.items()
    ]


def check_model(
    folder: pathlib.Path, model_dir: pathlib.Path, model, name: str, documents: list[list[int]]
) -> int:
    """Prints one row per case; returns how many layouts exceed the case's tolerance."""
    failures = 0
    for case, (dtype, words, tolerance) in CASES.items():
        own_norms = norms_in_own_dtype() if words else contextlib.nullcontext()
        with own_norms:
            expected = reference_logprobs(model, documents, getattr(torch, dtype))
        row = f"{name:<20}{case:<15}"
        run = ringside_cli.run if case == "float32" and name in AS_PROCESSES else ringside_cli.run_in_memory
        for layout in layouts_of(name):
            found = our_logprobs(folder, model_dir, expected, [*layout, f"model.dtype={dtype}", *words], run)
            worst, _ = distances(found, expected)
            passed = worst <= tolerance  # false for NaN too
            failures += not passed
            row += f"{worst:>15.2e}{'' if passed else ' FAIL':<5}"
        print(row, flush=True)
    return failures + check_bfloat16(folder, model_dir, model, name, documents)


def check_rope(folder: pathlib.Path, model_dir: pathlib.Path, model, name: str, documents: list[list[int]]) -> int:
    """As check_model in fp64. transformers takes longrope's short factors for short documents; so it is asked for a
    document of each kind alone, and we are told the longest document."""
    failures = 0
    dtype, words, tolerance = CASES["float64"]
    original = model.config.rope_parameters.get("original_max_position_embeddings", 0)
    kinds = [(documents, [])]
    if name.startswith("longrope"):
        kinds = [([d for d in documents if len(d) <= original], [f"model.max_document_tokens={original}"]),
                 ([d for d in documents if len(d) > original], [])]
    row = f"{name:<20}{'float64':<15}"
    for layout in LAYOUTS.values():
        worst = 0.0
        for chosen, limit in kinds:
            lines = "".join(json.dumps({"ids": ids}) + "\n" for ids in chosen)
            (folder / "rope").mkdir(exist_ok=True)
            (folder / "rope" / "in.jsonl").write_text(lines)
            expected = reference_logprobs(model, chosen, getattr(torch, dtype))
            found = our_logprobs(folder / "rope", model_dir, expected, [*layout, f"model.dtype={dtype}", *words, *limit])
            worst = max(worst, distances(found, expected)[0])
        passed = worst <= tolerance
        failures += not passed
        row += f"{worst:>15.2e}{'' if passed else ' FAIL':<5}"
    print(row, flush=True)
    return failures


def check_bfloat16(
    folder: pathlib.Path, model_dir: pathlib.Path, model, name: str, documents: list[list[int]]
) -> int:
    """As check_model, for the distance from fp64 that bf16 costs, largest and mean."""
    exact = reference_logprobs(model, documents, torch.float64)
    theirs = distances(reference_logprobs(model, documents, torch.bfloat16), exact)
    failures = 0
    row = f"{name:<20}{'bfloat16':<15}"
    for layout in layouts_of(name):
        ours = distances(our_logprobs(folder, model_dir, exact, [*layout, "model.dtype=bfloat16"]), exact)
        multiples = [mine / yours for mine, yours in zip(ours, theirs, strict=True)]
        passed = all(multiple <= BFLOAT16_BOUND for multiple in multiples)
        failures += not passed
        row += f"{multiples[0]:>8.2f} {multiples[1]:>6.2f}{'' if passed else ' FAIL':<5}"
    print(row, flush=True)
    return failures


def main() -> int:
    torch.set_num_threads(1)
    chooser = random.Random(7)
    documents = [
        [chooser.randrange(tiny_models.VOCAB) for _ in range(length)] for length in LENGTHS
    ]
    print(
        f"{'model':<20}{'dtype':<15}" + "".join(f"{name:>20}" for name in LAYOUTS)
    )
    failures = 0
    with tempfile.TemporaryDirectory() as folder_name:
        folder = pathlib.Path(folder_name)
        (folder / "in.jsonl").write_text(
            "".join(json.dumps({"ids": ids}) + "\n" for ids in documents)
        )
        for seed, (family, heads, kv_heads, tied) in enumerate(MODELS):
            model = tiny_models.make_model(
                tiny_models.make_config(family, heads, kv_heads, tied), seed
            )
            model_dir = tiny_models.save(model, folder / f"model{seed}")
            name = f"{family} {heads}/{kv_heads} {'tied' if tied else 'untied'}"
            failures += check_model(folder, model_dir, model, name, documents)
        for rope in tiny_models.ROPE_TYPES:  # documents shorter and longer than the 64 positions before scaling
            model = tiny_models.make_model(tiny_models.make_rope_config(rope), len(rope))
            failures += check_rope(folder, tiny_models.save(model, folder / rope), model, rope, documents)
    print(
        f"bounds: { {case: bound for case, (_, _, bound) in CASES.items()} }; "
        f"bfloat16: {BFLOAT16_BOUND} of transformers' distance; "
        f"{failures} of {(len(MODELS) * (len(CASES) + 1) + len(tiny_models.ROPE_TYPES)) * len(LAYOUTS)} comparisons outside"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
