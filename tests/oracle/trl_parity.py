"""Three steps on one recorded rollout file: `ringside train`, preset trl, against GRPOTrainer.

Guards the chain from group advantages over clipping, KL and aggregation to gradient clipping and
AdamW: a factor, a mask or an epsilon that differs anywhere shows in the loss, the KL, the gradient
norm or the change of the weights.
"""

import pathlib
import sys
import tempfile

import torch
import yaml

import ringside_cli
import tiny_models
import trl_side

STEPS, PROMPTS_PER_STEP, GROUP_SIZE, LEARNING_RATE = 3, 4, 6, 1e-3
ABSOLUTE, RELATIVE = 1e-6, 1e-3
# family, tied
MODELS = [("qwen3", True), ("qwen2", False)]
# kl_coef, num_iterations, further words of ours, options of TRL's GRPOConfig. Two passes a step, or the ratio is 1.
CASES = [
    (0.04, 1, [], {}),
    (0.5, 1, [], {}),
    (0.04, 2, [], {}),
    (0.0, 2, ["loss_aggregation=seq_mean_token_mean"], {"loss_type": "grpo"}),
    (0.0, 2, ["preset=trl_dr_grpo"], {"loss_type": "dr_grpo"}),
    (0.0, 2, ["clip_high=0.28", "ppo_clip.delta=1.3"], {"epsilon_high": 0.28, "delta": 1.3}),
    (
        0.04,
        2,
        ["preset=trl_cispo", "clip_high=1.1"],
        {"loss_type": "cispo", "epsilon_high": 1.1},
    ),
    (0.04, 2, ["preset=trl_grpo"], {"loss_type": "grpo"}),
    (0.04, 2, ["preset=trl_bnpo"], {"loss_type": "bnpo"}),
    (0.0, 2, ["preset=trl_sapo"], {"loss_type": "sapo"}),
    (
        0.04,
        2,
        ["preset=trl_gspo"],
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    (
        0.0,
        2,
        ["preset=trl_sapo", "importance_level=sequence"],
        {"loss_type": "sapo", "importance_sampling_level": "sequence"},
    ),
    (0.0, 2, ["loss=vespo"], {"loss_type": "vespo"}),
    (0.0, 2, ["advantage.std=batch"], {"scale_rewards": "batch"}),
    (0.0, 2, ["advantage.std=none"], {"scale_rewards": "none"}),
    (0.0, 1, ["entropy_coef=0.05"], {"entropy_coef": 0.05}),
    (0.0, 2, ["correction.opsm_delta=0.001"], {"off_policy_mask_threshold": 0.001}),
]


def train_with_ringside(folder: pathlib.Path, kl_coef: float, num_iterations: int, words: list[str]):
    """The updates of each step in order, as trl_side.Update, and the trained weights."""
    run_dir = folder / "-".join(["run", str(kl_coef), str(num_iterations), *words])
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(folder / "model"), "dtype": "float32"},
                "rollout": {
                    "prompts_per_step": PROMPTS_PER_STEP,
                    "group_size": GROUP_SIZE,
                    "max_completion_tokens": 64,
                },
                "optimizer": {
                    "learning_rate": LEARNING_RATE,
                    "lr_schedule": "constant",
                    "warmup_steps": 0,
                    "max_grad_norm": 1.0,
                    "weight_decay": 0.0,
                },
            }
        )
    )
    ringside_cli.run_in_memory(
        "train",
        recipe,
        "--rollouts",
        folder / "rollouts.jsonl",
        "--steps",
        STEPS,
        "--run-dir",
        run_dir,
        *([] if any(word.startswith("preset=") for word in words) else ["algorithm.preset=trl"]),
        f"algorithm.kl_coef={kl_coef}",
        f"algorithm.num_iterations={num_iterations}",
        *(f"algorithm.{word}" for word in words),
    )
    # A line of metrics is a training step; "updates" lists its optimizer steps, which is what TRL
    # logs.
    updates = [
        trl_side.Update(update["loss"], update["kl"], update["entropy"], update["grad_norm"])
        for step in ringside_cli.read_steps(run_dir)
        for update in step["updates"]
    ]
    return updates, ringside_cli.load_weights(run_dir / "checkpoint-final")


def weight_change_error(start: dict, ours: dict, theirs: dict) -> float:
    """|(ours - start) - (theirs - start)| / |theirs - start| over the stored tensors, in fp64."""
    difference = change = 0.0
    for name, before in start.items():
        if name not in ours:
            raise ValueError(f"checkpoint-final lacks {name}")
        difference += (ours[name].double() - theirs[name].double()).square().sum().item()
        change += (theirs[name].double() - before.double()).square().sum().item()
    return (difference / change) ** 0.5


def compare(ours: list[trl_side.Update], theirs: list[trl_side.Update]) -> int:
    """Prints a line per update; returns how many values lie outside ABSOLUTE + RELATIVE |TRL's|."""
    if len(ours) != len(theirs):
        print(f"  {len(ours)} updates, expected TRL's {len(theirs)}  FAIL")
        return 1
    failures = 0
    for index, (mine, expected) in enumerate(zip(ours, theirs, strict=True)):
        row = f"  update {index + 1}"
        for field in ("loss", "kl", "grad_norm"):
            got, wanted = getattr(mine, field), getattr(expected, field)
            passed = abs(got - wanted) <= ABSOLUTE + RELATIVE * abs(wanted)
            failures += not passed
            row += f"  {field} {got:.8f} TRL {wanted:.8f}{'' if passed else ' FAIL'}"
        print(row)
    return failures


def main() -> int:
    torch.set_num_threads(1)
    failures = 0
    for seed, (family, tied) in enumerate(MODELS):
        with tempfile.TemporaryDirectory() as folder_name:
            folder = pathlib.Path(folder_name)
            config = tiny_models.make_config(family, heads=4, kv_heads=2, tied=tied, layers=4)
            model = tiny_models.make_model(config, seed)
            tiny_models.save(model, folder / "model")
            rollouts = tiny_models.record_rollouts(
                model, folder / "rollouts.jsonl", STEPS * PROMPTS_PER_STEP, GROUP_SIZE, seed
            )
            start = ringside_cli.load_weights(folder / "model")
            last_losses = {}
            for kl_coef, num_iterations, words, options in CASES:
                theirs, their_weights = trl_side.train(
                    folder / "model",
                    rollouts,
                    GROUP_SIZE,
                    PROMPTS_PER_STEP,
                    kl_coef,
                    num_iterations,
                    LEARNING_RATE,
                    **options,
                )
                ours, our_weights = train_with_ringside(folder, kl_coef, num_iterations, words)
                print(
                    f"{family} {'tied' if tied else 'untied'}, kl_coef {kl_coef}, "
                    f"num_iterations {num_iterations} {' '.join(words)}"
                )
                failures += compare(ours, theirs)
                error = weight_change_error(start, our_weights, their_weights)
                failures += not error <= 1e-3
                print(
                    f"  weight change differs by {error:.2e} of its norm"
                    f"{'' if error <= 1e-3 else ' FAIL'}"
                )
                last_losses[kl_coef, num_iterations, *words] = ours[-1].loss
            if last_losses[0.04, 1] == last_losses[0.5, 1]:
                print("  kl_coef 0.04 and 0.5 gave the same loss: the KL term is not in it  FAIL")
                failures += 1
    print(f"{failures} values outside their bounds")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
