"""`ringside logprobs` and `ringside train` under every key of sequence parallelism: same figures.

Guards what the keys select: ring form, head chunks, placement, factoring, virtual ranks, asynchronous Ulysses,
shared prefixes, on 2 to 5 ranks and head counts that no degree divides. Log-probs are compared with
transformers', training with one process that shares nothing. Every layout runs with and without shared prefixes under
--full, with one of them otherwise. The ranks are threads of one process, but for the first model's layouts in
AS_PROCESSES.
"""

import json
import pathlib
import random
import sys
import tempfile

import torch

import hf_logprobs
import ringside_cli
import tiny_models

LOGPROB_BOUND = 2e-4
ABSOLUTE, RELATIVE = 1e-6, 1e-5  # of training figures in fp32
FIELDS = ("loss", "kl", "entropy", "grad_norm")
STEPS, PROMPTS_PER_STEP, GROUP_SIZE = 2, 2, 4
MODELS = [("qwen3", 7, 1), ("qwen2", 10, 5), ("llama", 14, 2)]


def words(ring: int = 1, ulysses: int = 1, **keys) -> list[str]:
    return [*ringside_cli.layout(ring=ring, ulysses=ulysses), *(f"sp.{key}={value}" for key, value in keys.items())]


def factored(size: int, **keys) -> list[str]:
    return ["--nproc", str(size), f"parallel.context_parallel_size={size}", *(f"sp.{k}={v}" for k, v in keys.items())]


LAYOUTS = {
    "1": words(),
    "2 ulysses": words(ulysses=2),
    "2 ulysses async": words(ulysses=2, async_ulysses="true"),
    "2 p2p": words(ring=2),
    "2 all_gather, stride 1": words(ring=2, ring_impl="all_gather", heads_k_stride=1),
    "2 factored": factored(2),
    "3 ulysses": words(ulysses=3),
    "3 p2p, gathered backward": words(ring=3, ring_backward="all_gather"),
    "3 p2p zigzag": words(ring=3, placement="zigzag"),
    "3 all_gather contiguous": words(ring=3, ring_impl="all_gather", placement="contiguous"),
    "4 ring 2 x ulysses 2": words(ring=2, ulysses=2),
    "4 all_gather 2 x async ulysses 2": words(ring=2, ulysses=2, ring_impl="all_gather", async_ulysses="true"),
    "4 virtual ranks on 2": ["--nproc", "2", *words(ulysses=4, virtual_ranks=4)[2:]],
    "4 p2p contiguous": words(ring=4, placement="contiguous"),
    "5 ulysses": words(ulysses=5),
    "5 p2p": words(ring=5),
    "5 all_gather, stride 2": words(ring=5, ring_impl="all_gather", heads_k_stride=2),
    "5 factored as ring": factored(5, method="ring"),
}

# Each way in which the keys make ranks meet.
AS_PROCESSES = ("2 ulysses async", "2 all_gather, stride 1", "3 p2p zigzag", "4 all_gather 2 x async ulysses 2",
                "4 virtual ranks on 2", "5 factored as ring")


def make_documents() -> list[list[int]]:
    """Documents of their own, two groups that share a prompt, and one conversation of several turns."""
    chooser = random.Random(3)

    def draw(length: int) -> list[int]:
        return [chooser.randrange(tiny_models.VOCAB) for _ in range(length)]

    documents = [draw(length) for length in (2, 3, 41, 300)]
    for prompt, completions in ((30, (5, 17, 1, 60)), (70, (9, 8))):
        shared = draw(prompt)
        documents += [shared + draw(length) for length in completions]
    turn = draw(40)
    reply = turn + draw(25)
    documents += [reply, reply + draw(12), reply + draw(20), turn + draw(33)]
    return documents


def train(folder: pathlib.Path, name: str, layout: list[str], run=ringside_cli.run_in_memory) -> list[dict]:
    recipe = ringside_cli.write_grpo_recipe(folder, PROMPTS_PER_STEP, GROUP_SIZE, 200)
    run_dir = folder / "runs" / name
    run("train", recipe, "--rollouts", folder / "rollouts.jsonl", "--steps", STEPS, "--run-dir", run_dir, *layout)
    return ringside_cli.read_steps(run_dir)


def training_difference(got: list[dict], expected: list[dict]) -> float:
    """The largest |difference| as a share of its bound, of any step and field."""
    return max(
        abs(mine[field] - other[field]) / (ABSOLUTE + RELATIVE * abs(other[field]))
        for mine, other in zip(got, expected, strict=True)
        for field in FIELDS
    )


def check_model(folder: pathlib.Path, name: str, model, full: bool, seed: int) -> int:
    documents = make_documents()
    (folder / "in.jsonl").write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in documents))
    expected = hf_logprobs.reference_logprobs(model, documents, torch.float32)
    single = train(folder, "single", [*ringside_cli.layout(), "sp.shared_prefix=false"])
    failures = 0
    for index, (layout_name, layout) in enumerate(LAYOUTS.items()):
        run = ringside_cli.run if seed == 0 and layout_name in AS_PROCESSES else ringside_cli.run_in_memory
        for shared in ("true", "false") if full else [("true", "false")[(index + seed) % 2]]:
            keys = [*layout, f"sp.shared_prefix={shared}"]
            found = hf_logprobs.our_logprobs(folder, folder / "model", expected, [*keys, "model.dtype=float32"], run)
            logprobs, _ = hf_logprobs.distances(found, expected)
            steps = train(folder, f"{index}-{shared}", keys, run)
            share = training_difference(steps, single)
            passed = logprobs <= LOGPROB_BOUND and share <= 1  # false for NaN too
            failures += not passed
            print(
                f"{name:<14}{layout_name:<34}shared_prefix {shared:<7}logprobs {logprobs:.1e}   "
                f"train {share:.4f}{'' if passed else '   FAIL'}",
                flush=True,
            )
    return failures


def main() -> int:
    full = "--full" in sys.argv[1:]
    torch.set_num_threads(1)
    failures = 0
    for seed, (family, heads, kv_heads) in enumerate(MODELS):
        with tempfile.TemporaryDirectory() as folder_name:
            folder = pathlib.Path(folder_name)
            # Half as wide as elsewhere: at std 0.2 one process in fp32 is already a whole bound away from fp64 on 14 heads.
            config = tiny_models.make_config(family, heads, kv_heads, tied=True)
            model = tiny_models.make_model(config, seed, std=0.1)
            tiny_models.save(model, folder / "model")
            tiny_models.record_rollouts(
                model, folder / "rollouts.jsonl", STEPS * PROMPTS_PER_STEP, GROUP_SIZE, seed=seed, max_completion=60
            )
            failures += check_model(folder, f"{family} {heads}/{kv_heads}", model, full, seed)
    print(f"{failures} outside the bounds: log-probs {LOGPROB_BOUND}, training {ABSOLUTE} + {RELATIVE} relative (as a share)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
