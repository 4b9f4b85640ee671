"""Writes regression/: one training step of every preset and of the options beside them, in PyTorch fp64.

An independent transcription: PRESETS says what each paper or system does in this file's own words, regression_advantages.py and
regression_step.py compute it sample by sample with transformers' models, torch's AdamW and clip_grad_norm_.
tests/rl/regression_test.cpp runs the same rollouts through the trainer's own step at every layout of ranks. A case holds the
keys that make it small, as words of a configuration, so that both sides read the same. Run it again after changing a case:
    .env/oracle/bin/python tests/goldens/regression.py
"""

import json

import regression_suite as suite
from regression_step import metrics_of, train

# Keys of a configuration without "algorithm."; weights: of rollout.reward's rewards.
DEFAULTS = {
    "loss": "ppo_clip", "importance_level": "token", "clip_low": 0.2, "clip_high": 0.2, "ppo_clip.dual_clip": 0.0, "ppo_clip.delta": 0.0,
    "cispo.bounds": "relative", "sapo.tau_positive": 1.0, "sapo.tau_negative": 1.05,
    "vespo.k_positive": 2.0, "vespo.lambda_positive": 3.0, "vespo.k_negative": 3.0, "vespo.lambda_negative": 2.0,
    "clip_cov.ratio": 2e-4, "clip_cov.lb": 1.0, "clip_cov.ub": 5.0, "kl_cov.ratio": 2e-4, "kl_cov.kl_coef": 0.1,
    "dppo.ratio_bound": 0.0, "k3_bound": 0.0, "kl_bound": 0.0, "kl_average": "tokens", "entropy_aggregation": "tokens",
    "kl_coef": 0.0, "kl_estimator": "k3", "kl_in": "loss", "kl_to": "reference", "kl_target": 0.0, "kl_horizon": 10000,
    "entropy_coef": 0.0, "entropy_target": 0.0, "entropy_step": 0.0,
    "loss_aggregation": "token_mean", "loss_divisor": 0.0, "num_iterations": 1, "old_logprobs": "recompute",
    "dynamic_sampling": "none", "mask_truncated": False,
    "reward.scale": 1.0, "reward.clip": 0.0, "reward.overlong_buffer_tokens": 0, "reward.overlong_factor": 1.0,
    "advantage.estimator": "group_mean", "advantage.std": "group", "advantage.eps": 1e-4, "advantage.unbiased": True,
    "advantage.whiten": "none", "advantage.whiten_eps": 1e-8, "advantage.whiten_eps_in": "variance", "advantage.gamma": 1.0, "advantage.lambda": 1.0,
    "critic.value_clip": 0.5, "critic.learning_rate": 1e-5, "critic.max_grad_norm": 1.0,
    "correction.mode": "none", "correction.level": "token", "correction.low": 0.0, "correction.high": 2.0,
    "correction.token_high": 0.0, "correction.opsm_delta": 0.0, "correction.reject": [], "correction.drop_rejected": False,
    "correction.normalize": False, "critic.num_iterations": 0, "critic.num_mini_batches": 0, "dro.beta": 0.1, "advantage.gpg_scale": False,
    "distillation": False, "distillation.coef": 1.0, "distillation.over": "sampled_token",
    "distillation.divergence": "reverse_kl", "distillation.top_k": 64, "distillation.mixture": 0.5, "optimizer.weight_decay_of": "matrices",
    "optimizer.lr_schedule": "constant", "optimizer.max_grad_norm": 1.0, "train.num_mini_batches": 1, "train.steps": 100,
}  # fmt: skip

# What makes a step small and its second update leave the clip range. A large eps keeps AdamW's first step from being the
# gradient's sign, which is noise where a gradient is zero.
SMALL = {
    "rollout.group_size": suite.GROUP, "rollout.prompts_per_step": 4, "rollout.max_completion_tokens": suite.MAX_COMPLETION,
    "rollout.reward": "math_answer, exact_match * 0.5", "optimizer.learning_rate": 0.05, "optimizer.eps": 0.01,
    "optimizer.weight_decay": 0.01, "critic.learning_rate": 0.04, "num_iterations": 2,
}  # fmt: skip
HALVES = {"train.num_mini_batches": 2, "num_iterations": 1}

SEQ_MEANS, GSPO_CLIP = {"loss_aggregation": "seq_mean_token_mean"}, {"clip_low": 3e-4, "clip_high": 4e-4}
KL_REWARD = {"kl_in": "reward", "kl_estimator": "k1"}
TRL = {"kl_estimator": "k3_unbiased", "optimizer.lr_schedule": "linear"}
EPS6 = {"advantage.eps": 1e-6}
# What is not named is DEFAULTS': clip 0.2, token mean, group mean and standard deviation over n - 1.
PRESETS = {
    "grpo": SEQ_MEANS | {"kl_coef": 0.04},
    "dr_grpo": {"advantage.std": "none", "loss_aggregation": "constant"},
    "dapo": {"clip_high": 0.28, "reward.overlong_factor": 1.0},
    "gspo": SEQ_MEANS | GSPO_CLIP | {"importance_level": "sequence"},
    "cispo": {"loss": "cispo", "cispo.bounds": "absolute", "clip_low": 0.0, "clip_high": 5.0},
    "ppo": KL_REWARD | {"kl_coef": 0.02, "advantage.estimator": "gae", "advantage.lambda": 0.95, "advantage.whiten": "tokens",
                        "critic.value_clip": 0.2},
    "rloo": KL_REWARD | {"kl_coef": 0.05, "loss": "reinforce", "advantage.estimator": "rloo", "advantage.std": "none",
                         "loss_aggregation": "seq_mean_token_sum"},
    "reinforce_pp": KL_REWARD | {"kl_coef": 0.01, "advantage.estimator": "reinforce", "advantage.whiten": "tokens"},
    "reinforce_pp_baseline": {"kl_coef": 0.01, "kl_estimator": "k2", "advantage.std": "none", "advantage.whiten": "tokens"},
    "opd": {"distillation": True, "old_logprobs": "rollout", "advantage.std": "none"},
    "trl": TRL,
    "trl_grpo": TRL | SEQ_MEANS,
    "trl_bnpo": TRL | {"loss_aggregation": "micro_batch_token_mean"},
    "trl_dr_grpo": TRL | {"loss_aggregation": "constant"},
    "trl_cispo": TRL | {"loss": "cispo", "cispo.bounds": "absolute", "clip_low": 0.0, "clip_high": 0.2},
    "trl_sapo": TRL | SEQ_MEANS | {"loss": "sapo"},
    "trl_gspo": TRL | SEQ_MEANS | GSPO_CLIP | {"importance_level": "sequence"},
    "verl": EPS6 | {"ppo_clip.dual_clip": 3.0, "dppo.ratio_bound": 3.0, "k3_bound": 10.0, "kl_average": "samples",
                    "entropy_aggregation": "loss", "optimizer.weight_decay_of": "all"},
    "openrlhf": {"kl_coef": 0.01, "kl_bound": 10.0, "kl_estimator": "k1", "kl_in": "advantage", "advantage.eps": 1e-9},
    "nemo_rl": EPS6 | {"kl_coef": 0.01, "kl_estimator": "k3_score", "advantage.estimator": "rloo",
                       "advantage.std": "leave_one_out"},
    "slime": EPS6 | SEQ_MEANS,
    "skyrl": EPS6 | {"kl_coef": 0.001},
    "areal": {"clip_low": 0.4, "clip_high": 0.4, "reward.clip": 20.0, "advantage.eps": 1e-5, "advantage.whiten": "tokens",
              "advantage.whiten_eps": 1e-5, "advantage.whiten_eps_in": "std", "kl_bound": 10.0, "correction.mode": "icepop", "correction.high": 5.0},
    "roll": EPS6 | SEQ_MEANS,
    "pipeline_rl": {"kl_coef": 0.1, "advantage.estimator": "rloo", "loss_aggregation": "seq_mean_token_sum",
                    "old_logprobs": "rollout"},
    "prime_rl": {"loss": "dppo_tv", "kl_coef": 2e-3, "kl_estimator": "k2", "kl_to": "rollout", "advantage.std": "none",
                 "old_logprobs": "rollout"},
}  # fmt: skip
# Keys beside SMALL that a preset's case sets.
PRESET_KEYS = {
    "dapo": {"dynamic_sampling": "drop", "reward.overlong_buffer_tokens": 4},
    "gspo": HALVES, "ppo": HALVES, "trl_dr_grpo": HALVES, "verl": HALVES, "areal": HALVES, "skyrl": HALVES,
    # A KL term shows what the estimator is for.
    "trl": {"kl_coef": 0.05, "train.num_mini_batches": 2, "train.steps": 2},  # four updates, so that the schedule shows
    "trl_gspo": {"kl_coef": 0.05} | HALVES,
}  # fmt: skip

CORRECTED = {"correction.low": 0.7, "correction.high": 1.3}
OPD = {"distillation": True, "distillation.coef": 0.5}
JENSEN_SHANNON = {"distillation.divergence": "jensen_shannon", "distillation.mixture": 0.3}
TURNS = {"file": "forked.jsonl", "rollout.prompts_per_step": 2}
# Options beside the presets, on DEFAULTS.
OPTIONS = {
    f"{mode}_{level}": CORRECTED | {"correction.mode": mode, "correction.level": level}
    for mode in ("tis", "icepop", "mask") for level in ("token", "sequence", "geometric")
} | {
    "seq_mask_tis": CORRECTED | {"correction.mode": "seq_mask_tis", "correction.low": 0.9, "correction.high": 1.1},
    "opsm": {"correction.opsm_delta": 1.6},
    "kl_in_reward": {"kl_in": "reward", "kl_coef": 0.1},
    "kl_in_advantage": {"kl_in": "advantage", "kl_coef": 0.1, "kl_estimator": "k2", "advantage.gamma": 0.9},
    "kl_abs_straight": {"kl_coef": 0.1, "kl_estimator": "abs_straight"},
    "k3_bound": {"kl_coef": 0.5, "k3_bound": 0.02},
    "kl_bound_in_reward": {"kl_coef": 0.5, "kl_bound": 0.02, "kl_in": "reward"},
    "adaptive_kl_of_samples": {"kl_in": "reward", "kl_coef": 0.1, "kl_target": 0.05, "kl_horizon": 50,
                               "kl_average": "samples"},
    "dppo_bounded": {"loss": "dppo_tv", "clip_low": 0.5, "clip_high": 0.5, "dppo.ratio_bound": 1.05},
    "seq_mask_tis_bounded": CORRECTED | {"correction.mode": "seq_mask_tis", "correction.token_high": 1.1},
    "entropy_like_the_loss": SEQ_MEANS | HALVES | {"entropy_coef": 0.05, "entropy_aggregation": "loss"},
    "decay_of_all": HALVES | {"optimizer.weight_decay_of": "all", "optimizer.weight_decay": 0.5},
    "adaptive_kl": {"kl_coef": 0.1, "kl_target": 0.01, "kl_horizon": 50},
    "adaptive_kl_in_reward": {"kl_in": "reward", "kl_coef": 0.1, "kl_target": 5.0, "kl_horizon": 50},
    "entropy_bonus": {"entropy_coef": 0.05} | HALVES,
    "entropy_target": {"entropy_coef": 0.05, "entropy_target": 2.5, "entropy_step": 0.02},
    "two_sided": {"ppo_clip.delta": 1.5, "clip_low": 0.1},
    "cispo_relative": {"loss": "cispo"},
    "clip_cov": HALVES | {"loss": "clip_cov", "clip_cov.ratio": 1.0, "clip_cov.lb": 0.5, "clip_cov.ub": 3.0},
    "kl_cov": HALVES | {"loss": "kl_cov", "kl_cov.ratio": 0.2, "kl_cov.kl_coef": 0.5},
    "dppo_kl": {"loss": "dppo_kl", "clip_low": 0.02, "clip_high": 0.02},
    "gmpo": {"loss": "gmpo", "clip_low": 0.4, "clip_high": 0.4} | HALVES,
    # A smaller step: at the others' rate the weight of every sequence is 0 in the second half.
    "vespo": {"loss": "vespo", "optimizer.learning_rate": 0.005} | HALVES,
    "token_sum": {"loss_aggregation": "token_sum"},
    "loss_divisor": {"loss_aggregation": "constant", "loss_divisor": 20.0},
    "mask_truncated": {"mask_truncated": True} | SEQ_MEANS,
    "reward_clip": {"reward.scale": 2.0, "reward.clip": 2.5, "reward.overlong_buffer_tokens": 6,
                    "reward.overlong_factor": 0.5},
    "gdpo": {"advantage.estimator": "gdpo"},
    "pass_at_k": {"advantage.estimator": "pass_at_k"},
    "max_rl": {"advantage.estimator": "max_rl"},
    "opo": {"advantage.estimator": "opo"} | HALVES,
    # A smaller step, so that fp32 rounding of the first update does not grow above 1e-5 in the second.
    "opo_turns": TURNS | SEQ_MEANS | {"advantage.estimator": "opo", "optimizer.learning_rate": 0.02},
    "gpg": {"advantage.std": "none", "advantage.gpg_scale": True, "loss": "reinforce"},
    "optimal_token_baseline": {"advantage.estimator": "optimal_token_baseline", "kl_in": "reward", "kl_coef": 0.1},
    "optimal_token_baseline_turns": TURNS | HALVES | {"advantage.estimator": "optimal_token_baseline", "correction.mode": "tis"},
    "dro": {"loss": "dro", "dro.beta": 0.8},
    "dro_of_the_sampler": {"loss": "dro", "dro.beta": 0.8, "old_logprobs": "rollout", "train.num_mini_batches": 2},
    "rejected_by_two": HALVES | {"correction.reject": [{"by": "token_k2", "high": 0.02}, {"by": "seq_max_k3", "high": 0.1}]},
    "dropped": SEQ_MEANS | {"correction.reject": [{"by": "token_k3", "high": 0.02}], "correction.drop_rejected": True,
                            "kl_coef": 0.1, "entropy_coef": 0.05},
    "dropped_of_tokens": {"correction.reject": [{"by": "token_k1", "low": 0.9, "high": 1.15}], "correction.drop_rejected": True,
                          "kl_coef": 0.1, "entropy_coef": 0.05, "entropy_aggregation": "loss"} | HALVES,
    "critic_of_its_own": {"advantage.estimator": "gae", "critic.num_iterations": 3, "critic.num_mini_batches": 4,
                          "critic.learning_rate": 0.01, "num_iterations": 1, "train.num_mini_batches": 2},
    "std_batch": {"advantage.std": "batch", "advantage.unbiased": False},
    "whiten_sequences": {"advantage.whiten": "sequences"} | HALVES,
    "reinforce_discounted": {"advantage.estimator": "reinforce", "advantage.gamma": 0.9},
    "gae_turns": TURNS | {"advantage.estimator": "gae", "advantage.gamma": 0.95, "advantage.lambda": 0.9},
    "grpo_turns": TURNS | SEQ_MEANS | {"kl_coef": 0.04},
    "opd_whitened": OPD | HALVES | {"advantage.whiten": "tokens", "kl_coef": 0.1},
    "opd_reverse_kl": OPD | HALVES | {"distillation.over": "vocabulary"},
    "opd_forward_kl": OPD | HALVES | {"distillation.over": "vocabulary", "distillation.divergence": "forward_kl"},
    "opd_jensen_shannon": OPD | HALVES | JENSEN_SHANNON | {"distillation.over": "vocabulary", "kl_coef": 0.1},
    "opd_top_k": OPD | HALVES | JENSEN_SHANNON | {"distillation.over": "top_k", "distillation.top_k": 5},
    "opd_turns": TURNS | OPD | SEQ_MEANS | {"distillation.over": "top_k", "distillation.top_k": 3},
    "gspo_forks": TURNS | SEQ_MEANS | {"importance_level": "sequence", "clip_low": 0.02, "clip_high": 0.02},
}  # fmt: skip


def words(keys, c):
    """As a configuration is overridden; without a critic its keys would be refused."""
    sections = ("rollout.", "optimizer.", "train.")
    text = {k if k.startswith(sections) else "algorithm." + k: v for k, v in keys.items()
            if k not in ("file", "distillation") and (c["advantage.estimator"] == "gae" or not k.startswith("critic."))}  # fmt: skip
    return [f"{k}={str(v).lower() if isinstance(v, bool) else json.dumps(v) if isinstance(v, list) else v}" for k, v in text.items()]


def make_case(name, preset, keys, files):
    c = DEFAULTS | PRESETS.get(preset, {}) | SMALL | keys | {"weights": {"math_answer": 1.0, "exact_match": 0.5}}
    file = keys.get("file", "plain.jsonl")
    done = train(c, files[file], suite.load)
    columns = done["columns"]
    print(name, *(f"  loss {u['loss']:.4f} norm {u['grad_norm']:.4f} clipped {u['clip_low']} {u['clip_high']} opsm {u['opsm']}"
                  for u in done["policy"]))  # fmt: skip
    per_token = ("kl", "entropy", "clip_low", "clip_high")
    updates = [{k: u[k] for k in ("loss", "policy_loss", "grad_norm")} | {k: u[k] / u["tokens"] for k in per_token}
               for u in done["policy"]]  # fmt: skip
    case = dict(name=name, preset=preset, rollouts=file, overrides=words(SMALL | keys, c), rewards=done["batch"].score.tolist(),
                advantages=columns["advantage"].tolist(), updates=updates, critic=done["critic"],
                metrics=metrics_of(c, done), next_kl_coef=[done["state"]["kl_coef"]])  # fmt: skip
    if c["distillation"]:
        case["teacher"] = "teacher"
    if c["correction.mode"] != "none" or c["correction.reject"]:
        case["correction"] = columns["correction"].tolist()
    if columns["value"] is not None:
        case |= dict(values=columns["value"].tolist(), returns=columns["returns"].tolist())
    return case


def main():
    suite.OUT.mkdir(exist_ok=True)
    files = suite.make_suite()
    cases = [make_case(name, name, PRESET_KEYS.get(name, {}), files) for name in PRESETS]
    cases += [make_case(name, "none", keys, files) for name, keys in OPTIONS.items()]
    (suite.OUT / "cases.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main()
