"""One step of distillation on recorded rollouts, `ringside train`, against TRL's losses in fp64.

Divergence and gradient norm of the whole vocabulary with GKDTrainer.generalized_jsd_loss, of the teacher's most likely tokens
with what TRL's ServerDistillationTrainer does (a class of all other tokens). With over sampled_token the divergence is verl's
k1: log-prob - teacher's log-prob. Models and rollouts are those of tests/goldens/regression.

    .env/oracle/bin/python tests/oracle/distillation.py
"""

import json
import pathlib
import sys
import tempfile

import ringside_cli
import torch
import yaml
from trl.experimental.gkd.gkd_trainer import GKDTrainer
from trl.experimental.server_distillation import server_distillation_trainer as sparse

GOLDENS = pathlib.Path(__file__).resolve().parents[1] / "goldens"
sys.path.insert(0, str(GOLDENS))
import regression_suite as suite  # noqa: E402

TOLERANCE = 1e-9
TOP_K = 5
# Our keys, and TRL's beta.
CASES = [
    ({"over": "vocabulary", "divergence": "reverse_kl"}, 1.0),
    ({"over": "vocabulary", "divergence": "forward_kl"}, 0.0),
    ({"over": "vocabulary", "divergence": "jensen_shannon", "mixture": 0.3}, 0.3),
    ({"over": "top_k", "divergence": "reverse_kl", "top_k": TOP_K}, 1.0),
    ({"over": "top_k", "divergence": "forward_kl", "top_k": TOP_K}, 0.0),
    ({"over": "top_k", "divergence": "jensen_shannon", "mixture": 0.3, "top_k": TOP_K}, 0.3),
    ({"over": "sampled_token"}, None),
]


def recorded() -> list[dict]:
    """The lines of temperature 1."""
    lines = [json.loads(line) for line in (suite.OUT / "plain.jsonl").read_text().splitlines()]
    return [line for line in lines if line["temperature"] == 1.0]


def sparse_loss(student, teacher, mask, beta):
    """Summed over the tokens, as ServerDistillationTrainer computes it from a teacher's K log-probs."""
    student, teacher = student.log_softmax(-1), teacher.log_softmax(-1)
    support = teacher.topk(TOP_K, -1).indices
    valid = torch.ones_like(support, dtype=torch.bool)
    own, of_support = sparse._add_tail_bucket(student.gather(-1, support), valid)
    theirs, _ = sparse._add_tail_bucket(teacher.gather(-1, support), valid)
    return sparse._jsd_divergence(own, theirs, beta, of_support)[mask].sum()


def with_trl(lines: list[dict], keys: dict, beta: float | None) -> tuple[float, float]:
    """Mean divergence over the loss tokens, and the norm of its gradient; NaN where there is none."""
    policy, teacher = suite.load("policy"), suite.load("teacher")
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for line in lines:
        ids = torch.tensor(line["prompt_ids"] + line["completion_ids"])
        labels = torch.tensor(line["completion_ids"])
        mask = torch.tensor(line["loss_mask"], dtype=torch.bool)
        if not mask.any():
            continue
        begin = len(line["prompt_ids"])
        student = policy(input_ids=ids[None]).logits[0, begin - 1 : -1]
        with torch.no_grad():
            of_teacher = teacher(input_ids=ids[None]).logits[0, begin - 1 : -1, : suite.VOCAB]
        if keys["over"] == "vocabulary":
            total = total + GKDTrainer.generalized_jsd_loss(
                student[None], of_teacher[None], labels.masked_fill(~mask, -100)[None], beta=beta, reduction="sum"
            )
        elif keys["over"] == "top_k":
            total = total + sparse_loss(student, of_teacher, mask, beta)
        else:  # the teacher's log-prob is over all of its words
            whole = teacher(input_ids=ids[None]).logits[0, begin - 1 : -1]
            k1 = (student.log_softmax(-1) - whole.log_softmax(-1)[:, : suite.VOCAB]).gather(-1, labels[:, None])[:, 0]
            total = total + k1[mask].sum().detach()
        tokens += int(mask.sum())
    if not total.requires_grad:
        return total.item() / tokens, float("nan")
    (total / tokens).backward()
    return total.item() / tokens, float(torch.nn.utils.clip_grad_norm_(policy.parameters(), 1e9))


def with_ringside(folder: pathlib.Path, lines: list[dict], keys: dict, layout: list[str]) -> tuple[float, float]:
    recipe, rollouts = folder / "recipe.yaml", folder / "rollouts.jsonl"
    run_dir = folder / "-".join(str(word) for word in [*keys.values(), *layout])
    rollouts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe.write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(suite.OUT / "policy"), "dtype": "float64"},
                "rollout": {"prompts_per_step": len(lines) // suite.GROUP, "group_size": suite.GROUP, "max_completion_tokens": 12},
                "algorithm": {"preset": "opd", "distillation": {"teacher": str(suite.OUT / "teacher"), **keys}},
            }
        )
    )
    ringside_cli.run_in_memory("train", recipe, "--rollouts", rollouts, "--steps", 1, "--run-dir", run_dir, *layout)
    step = ringside_cli.read_steps(run_dir)[0]
    if keys["over"] == "sampled_token":
        return step["distillation/kl"], float("nan")
    return step["distillation/divergence"], step["grad_norm"]


def main() -> int:
    torch.set_num_threads(1)
    lines, failures = recorded(), 0
    with tempfile.TemporaryDirectory() as folder:
        for keys, beta in CASES:
            theirs = with_trl(lines, keys, beta)
            for layout in ([], ["parallel.ulysses_parallel_size=2", "parallel.cp_fsdp_mode=all"]):
                ours = with_ringside(pathlib.Path(folder), lines, keys, layout)
                off = max(abs(a - b) for a, b in zip(ours, theirs, strict=True) if b == b)
                failures += not off < TOLERANCE
                print(f"{keys} {layout}: divergence {ours[0]:.12f} TRL {theirs[0]:.12f}, gradient norm {ours[1]:.12f} TRL "
                      f"{theirs[1]:.12f}{'' if off < TOLERANCE else '  FAIL'}")  # fmt: skip
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
