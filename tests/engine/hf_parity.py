"""Every family of models against transformers: log-probs and gradients at every layout, and greedy generation.

Guards what a family's own layers add (windows, sinks, norms, gates, scales) through every sequence-parallel method, the
gradient of every parameter by its name on disk, and the cache; experts on several ranks, also those of models saved by
these. Weights are drawn wide; the longest document is far longer than the window, the shortest has one token.

Usage: hf_parity.py HF_PARITY_EXECUTABLE [FAMILY...], of tiny_models.FAMILIES (all, if none is named) or MORE_FAMILIES
"""
import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile
from unittest import mock

import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import tiny_models  # noqa: E402  (found through the line above)
from own_dtype import compute_delta_nets_in_own_dtype  # noqa: E402

LENGTHS = [1, 2, 7, 23, 40, 65]
PROMPT_LENGTHS = [5, 1, 17]
NEW_TOKENS = 16
ENDED_FAMILY = "qwen3, windows"  # whose completions are also ended by several ids
LOGPROBS = {"float32": 2e-4, "float64": 2e-6}
GRADIENT = 1e-4  # of the largest element of the parameter's gradient
AUX_LOSS_COEF, AUX_LOSS = 5.0, 1e-6


def task() -> dict:
    chooser = random.Random(7)
    ids = lambda length: [chooser.randrange(2, tiny_models.VOCAB) for _ in range(length)]  # noqa: E731
    return {"documents": [ids(n) for n in LENGTHS], "prompts": [ids(n) for n in PROMPT_LENGTHS],
            "new_tokens": NEW_TOKENS, "aux_loss_coef": AUX_LOSS_COEF}


def auxiliary_loss(model, router_logits) -> torch.Tensor:
    """transformers' load-balancing loss over the router logits of all documents, in their dtype."""
    loss = sys.modules[type(model).__module__].load_balancing_loss_func
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):  # the counts
        return loss(router_logits, model.num_experts, model.num_experts_per_tok)


def expected_pass(model, documents, aux_loss=False):
    """Log-probs of all documents; the gradients of their sum by the names of parameters on disk; and the auxiliary loss,
    which is part of that sum if it is asked for."""
    model.zero_grad()
    parts, router_logits = [], ()
    for ids in documents:
        output = model(torch.tensor([ids]), **({"output_router_logits": True} if aux_loss else {}))
        router_logits += output.router_logits if aux_loss else ()
        scores = output.logits[0, :-1].log_softmax(-1)
        parts.append(scores.gather(1, torch.tensor(ids[1:], dtype=torch.long)[:, None])[:, 0])
    logprobs = torch.cat(parts)
    loss = auxiliary_loss(model, router_logits) if aux_loss else torch.zeros(())
    (logprobs.sum() + AUX_LOSS_COEF * loss).backward()
    return logprobs.detach().double(), loss.item(), tiny_models.on_disk(
        {name: parameter.grad.clone() for name, parameter in model.named_parameters()} |
        # Corrections of routers are buffers there, here parameters without gradient.
        {name: torch.zeros_like(buffer) for name, buffer in model.named_buffers() if "correction_bias" in name},
        model.config)


def expected_completions(model, prompts) -> list[list[int]]:
    completions = []
    for ids in prompts:
        with torch.no_grad():
            whole = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None,
                                   pad_token_id=tiny_models.PAD)
        completions.append(whole[0, len(ids):].tolist())
    return completions


def with_several_ends(folder: pathlib.Path, completions) -> None:
    """Puts two ids that greedy completions come to into generation_config.json, and another one into config.json."""
    ends = [completions[0][5], completions[2][9]]
    for name, value in (("generation_config.json", ends), ("config.json", tiny_models.EOS)):
        fields = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(fields | {"eos_token_id": value}))


def ended_completions(folder: pathlib.Path, prompts) -> list[list[int]]:
    """As transformers ends them, which reads the ids from generation_config.json."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return [model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW_TOKENS,
                               pad_token_id=tiny_models.PAD)[0, len(ids):].tolist() for ids in prompts]


@torch.no_grad()
def differing_logits(saved: pathlib.Path, original: pathlib.Path, documents) -> int:
    """Documents for which transformers computes other logits with the one directory's weights than with the other's."""
    def load(folder: pathlib.Path):
        attention = tiny_models.attention_of(transformers.AutoConfig.from_pretrained(folder))
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention, experts_implementation="eager").eval()

    model = load(saved)
    logits = [model(torch.tensor([ids])).logits for ids in documents]
    # Into the same memory: products of single rows have other bits at other alignments.
    model.load_state_dict(load(original).state_dict())
    return sum(not torch.equal(found, model(torch.tensor([ids])).logits) for found, ids in zip(logits, documents))


def check(executable: str, work: pathlib.Path, family: str, dtype: str) -> int:
    """Prints one row a quantity with the worst layout; returns how many exceed their bounds."""
    model = tiny_models.make_model(tiny_models.make_family(family), seed=len(family))
    tiny_models.save(model, work / family)
    (work / "task.json").write_text(json.dumps(task()))
    if family == ENDED_FAMILY:
        with_several_ends(work / family, expected_completions(model, task()["prompts"]))
    out = work / f"{family}-{dtype}.safetensors"
    done = subprocess.run([executable, work / family, dtype, work / "task.json", out], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        print(f"{family} {dtype}: {done.stderr}")
        return 1
    found = safetensors.torch.load_file(out)
    model = copy.deepcopy(model).to(getattr(torch, dtype))
    if dtype == "float64":
        compute_delta_nets_in_own_dtype(model)
    documents = task()["documents"]
    expected = {False: expected_pass(model, documents)}
    # MiniMax-M2's routers take sigmoids, but transformers' auxiliary loss for it a softmax.
    if (any(name.startswith("aux_loss/") for name in found) and hasattr(model, "router_aux_loss_coef")
            and model.config.model_type != "minimax_m2"):
        expected[True] = expected_pass(model, documents, aux_loss=True)
    failures = 0

    def row(what: str, worst: float, bound: float) -> None:
        nonlocal failures
        passed = worst <= bound  # false for NaN too
        failures += not passed
        print(f"{family:<20}{dtype:<9}{what:<60}{worst:>12.2e}{'' if passed else f' FAIL, bound {bound}'}", flush=True)

    for layout in (name.removeprefix("logprobs/") for name in sorted(found) if name.startswith("logprobs/")):
        if f"aux_loss/{layout}" in found and True not in expected:
            continue  # deepseek_v3, minimax_m2: transformers has no such loss for it
        logprobs, aux_loss, gradients = expected[f"aux_loss/{layout}" in found]
        if f"aux_loss/{layout}" in found and dtype == "float64":
            row(f"auxiliary loss {aux_loss:.4f}, {layout}", abs(found[f"aux_loss/{layout}"].item() - aux_loss), AUX_LOSS)
        row(f"log-probs, {layout}", (found[f"logprobs/{layout}"] - logprobs).abs().max().item(), LOGPROBS[dtype])
        prefix = f"gradient/{layout}/"
        names = {name.removeprefix(prefix) for name in found if name.startswith(prefix)}
        if names != set(gradients):
            print(f"{family}: parameters differ: {sorted(names ^ set(gradients))}")
            return failures + 1
        if dtype == "float64":
            worst, name = max(((found[prefix + name] - value).abs().max().item() / (value.abs().max().item() or 1.0), name)
                              for name, value in gradients.items())
            row(f"gradient, {layout}, {name}", worst, GRADIENT)
    if dtype == "float32":
        for saved in sorted(work.glob(f"{family}-saved-*")):
            row(f"documents with other logits, {saved.name}", differing_logits(saved, work / family, documents), 0)
    completions = [found[f"completion/{i}"].tolist() for i in range(len(PROMPT_LENGTHS))]
    assert len(set(sum(completions, []))) > 4, f"{family}: completions of too few tokens to compare: {completions}"
    differing = sum(ours != theirs for ours, theirs in zip(completions, expected_completions(model, task()["prompts"])))
    row("completions that differ", differing, 0)
    if family == ENDED_FAMILY and dtype == "float32":
        ended = [found[f"ended/{i}"].tolist() for i in range(len(PROMPT_LENGTHS))]
        assert len({completion[-1] for completion in ended if len(completion) < NEW_TOKENS}) > 1, f"one end alone: {ended}"
        differing = sum(ours != theirs for ours, theirs in zip(ended, ended_completions(work / family, task()["prompts"])))
        row("completions that end elsewhere", differing, 0)
    return failures


def main() -> int:
    torch.set_num_threads(1)
    executable, *families = sys.argv[1:]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for family in families or tiny_models.FAMILIES:
            for dtype in ("float64",) if family in tiny_models.IN_DOUBLES else LOGPROBS:
                failures += check(executable, pathlib.Path(folder), family, dtype)
    print(f"{failures} outside their bounds")
    return 1 if failures else 0


sys.exit(main())
