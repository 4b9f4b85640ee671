"""More ranks than documents: every command that computes, at layouts where some ranks have no token.

Guards ranks that decide by their own empty batch what all ranks must decide alike: a collective that the others leave
out, a table without rows. The log-probs of one document, and two steps of fine-tuning, GRPO, PPO and LoRA on one group
of two rollouts, of which one sample is scored for the log, equal those of one process in fp64. Ranks are threads.

Usage: few_documents.py [FAMILY...]    (default: one dense, one with experts, one hybrid; all: every family)
"""

import json
import pathlib
import sys
import tempfile

import ringside_cli
import tiny_models

BOUND = 1e-9  # of figures, or relative for those above 1
DEFAULT = ("mistral, window", "qwen3_moe, window", "qwen3_next")
STEPS = 2


def layout(experts: int = 1, shard: int = 1, **axes: int) -> list[str]:
    words = ringside_cli.layout(**axes)
    words[1] = str(int(words[1]) * shard)
    return [*words, f"parallel.data_parallel_shard_size={shard}", f"parallel.expert_parallel_size={experts}"]


ALONE = layout()
LAYOUTS = {"replicas 3": layout(data=3), "shards 3": layout(shard=3), "shards 2, ring 2": layout(shard=2, ring=2),
           "replicas 2, ulysses 2": layout(data=2, ulysses=2)}
EXPERT_LAYOUTS = {"shards 2 of experts": layout(shard=2, experts=2),
                  "shards 2 x ulysses 2 of experts": layout(shard=2, ulysses=2, experts=4),
                  "replicas 2, ring 2 of experts": layout(data=2, ring=2, experts=2)}


def write_data(folder: pathlib.Path) -> None:
    (folder / "in.jsonl").write_text(json.dumps({"ids": [5, 6, 7, 8, 9, 10, 11]}) + "\n")
    (folder / "sft.jsonl").write_text(json.dumps({"prompt": "abc", "completion": "defgh"}) + "\n")
    rollouts = [{"group_id": group, "prompt_ids": [5, 6, 7], "completion_ids": [8 + i, 9, 10 + i, 1],
                 "logprobs": [-3.0, -2.5, -3.5, -2.0], "reward": float(i), "finish_reason": "stop"}
                for group in range(STEPS) for i in range(2)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(rollout) + "\n" for rollout in rollouts))


def runs_of(folder: pathlib.Path, has_experts: bool, has_delta_nets: bool) -> dict[str, list]:
    model = f"model.path={folder / 'model'}"
    sft = ["train", "--steps", STEPS, model, "algorithm.task=sft", f"data.sft={folder / 'sft.jsonl'}",
           f"data.sft_eval={folder / 'sft.jsonl'}", "eval.every=1", "train.batch_size=1"]
    rollouts = ["train", "--steps", STEPS, model, "--rollouts", folder / "rollouts.jsonl", "rollout.prompts_per_step=1",
                "rollout.group_size=2", "log.samples=1", "log.samples_after=true"]
    grpo = [*rollouts, "algorithm.kl_coef=0.05", "train.num_mini_batches=2"]
    runs = {"logprobs": ["logprobs", "--model", folder / "model", "--input", folder / "in.jsonl", "--output",
                         folder / "out.jsonl"],
            "sft": sft, "grpo": grpo, "ppo": [*rollouts, "algorithm.advantage.estimator=gae"],
            "grpo, recomputed": [*grpo, "model.recompute=selective", "model.mlp_tile_tokens=3"]}
    if has_experts:
        runs["grpo, routes replayed"] = [*grpo, "algorithm.router_replay=recompute"]
    if not has_experts and not has_delta_nets:
        runs["grpo, lora"] = [*grpo, "lora.rank=2"]
    return runs


def figures(folder: pathlib.Path, words: list) -> list[float]:
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        where = ["--run-dir", run_dir, "checkpoint.every_minutes=0"] if words[0] == "train" else []
        ringside_cli.run_in_memory(*words, *where, "model.dtype=float64", "model.fp32_norms=false", timeout=60)
        if words[0] == "logprobs":
            return ringside_cli.read_lines(folder / "out.jsonl")[0]["logprobs"]
        return [step[key] for step in ringside_cli.read_steps(pathlib.Path(run_dir)) for key in ("loss", "grad_norm")]


def check_family(family: str, folder: pathlib.Path) -> int:
    config = tiny_models.make_family(family)
    tiny_models.save(tiny_models.make_model(config, 3), folder / "model")
    write_data(folder)
    has_experts = any(getattr(config, key, None) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    has_delta_nets = "linear_attention" in (getattr(config, "layer_types", None) or [])
    layouts = LAYOUTS | (EXPERT_LAYOUTS if has_experts else {})
    worst, failures = 0.0, 0
    for name, words in runs_of(folder, has_experts, has_delta_nets).items():
        expected = figures(folder, [*words, *ALONE])
        for where, ranks in layouts.items():
            found = figures(folder, [*words, *ranks])
            distance = max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(expected, found, strict=True))
            worst = max(worst, distance)
            if not distance <= BOUND:
                failures += 1
                print(f"FAILED {family}, {name}, {where}: {distance:.1e} from one process, bound {BOUND:.0e}")
    print(f"{family}: at most {worst:.1e} from one process", flush=True)
    return failures


def main() -> int:
    families = sys.argv[1:] or DEFAULT
    if families == ["all"]:
        families = tiny_models.FAMILIES
    failures = 0
    for family in families:
        with tempfile.TemporaryDirectory() as name:
            failures += check_family(family, pathlib.Path(name))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
