"""Trains on recorded rollouts with TRL's GRPOTrainer: the reference numbers of trl_parity.py."""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import warnings

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import datasets
import torch
import transformers
import trl

import tiny_models

transformers.utils.logging.disable_progress_bar()


@dataclasses.dataclass
class Update:
    """What one optimizer step reported. grad_norm is the norm before clipping."""

    loss: float
    kl: float
    entropy: float
    grad_norm: float


class _RecordingTrainer(trl.GRPOTrainer):
    """GRPOTrainer that keeps each update's loss as computed, before logging averages it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.losses: list[float] = []
        self.updates: list[Update] = []

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.losses.append(loss.item())
        return loss

    def log(self, logs, start_time=None):
        super().log(logs, start_time)
        if "grad_norm" in logs:
            self.updates.append(
                Update(self.losses[-1], logs.get("kl", 0.0), logs["entropy"], logs["grad_norm"])
            )


def train(
    model_dir: pathlib.Path,
    rollouts: list[dict],
    group_size: int,
    prompts_per_step: int,
    kl_coef: float,
    num_iterations: int,
    learning_rate: float,
    **options,
) -> tuple[list[Update], dict[str, torch.Tensor]]:
    """One pass over `rollouts`, a whole step's samples in one micro-batch.

    Returns one Update per optimizer step, num_iterations of them per training step, and the trained
    weights. options: of GRPOConfig, loss_type "dapo" unless they say otherwise.
    """
    batch = group_size * prompts_per_step
    steps = len(rollouts) // batch
    remaining = [rollouts[i * batch : (i + 1) * batch] for i in range(steps)]
    current: list[dict] = []

    def replay(prompts, trainer):
        current[:] = remaining.pop(0)
        if len(prompts) != len(current):
            raise ValueError(
                f"the trainer asks for {len(prompts)} samples, recorded are {len(current)} a step"
            )
        return {
            key: [rollout[key] for rollout in current]
            for key in ("prompt_ids", "completion_ids", "logprobs")
        }

    def recorded_reward(completions, **kwargs):
        return [rollout["reward"] for rollout in current]

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = trl.GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            fp16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            num_generations=group_size,
            num_iterations=num_iterations,
            max_steps=steps * num_iterations,
            learning_rate=learning_rate,
            lr_scheduler_type="constant",
            warmup_steps=0,
            max_grad_norm=1.0,
            weight_decay=0.0,
            optim="adamw_torch",
            **{"loss_type": "dapo", **options},
            beta=kl_coef,
            temperature=1.0,
            max_completion_length=64,
            shuffle_dataset=False,
            disable_dropout=True,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            dataloader_num_workers=0,
            seed=1,
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        # The prompts' texts are never read: replay() hands over the recorded ids. They only have to
        # be countable.
        dataset = datasets.Dataset.from_dict(
            {"prompt": [f"prompt {i}" for i in range(steps * prompts_per_step)]}
        )
        with contextlib.redirect_stdout(None):
            trainer = _RecordingTrainer(
                model=model,
                reward_funcs=recorded_reward,
                args=config,
                train_dataset=dataset,
                processing_class=tiny_models.make_tokenizer(),
                rollout_func=replay,
            )
            trainer.train()
    if remaining:
        raise RuntimeError(f"TRL consumed {steps - len(remaining)} steps of {steps} recorded ones")
    weights = {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}
    return trainer.updates, weights
