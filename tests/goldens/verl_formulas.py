"""Writes verl_formulas.json: values of verl 0.9.1's own functions in fp64, with gradients by autograd.

ReMax's advantages (compute_remax_outcome_advantage) and the losses of bypass_mode (compute_policy_loss_bypass_mode),
from which tests/rl/verl_formulas_test.cpp takes its expected values. Needs the unpacked wheel of verl 0.9.1:
    PYTHONPATH=VERL .env/oracle/bin/python tests/goldens/verl_formulas.py
"""

import pathlib
import sys
import types
from unittest import mock

import torch

import golden_file

# What the functions below do not use of the modules that core_algos imports.
for unused in ("ray", "omegaconf", "tensordict", "tensordict.tensorclass", "verl.trainer.config",
               "verl.trainer.config.algorithm", "verl.workers.config", "verl.workers.config.actor"):
    sys.modules.setdefault(unused, mock.MagicMock())


class Batch:
    """What the functions use of verl's DataProto."""

    def __init__(self, tensors):
        self.batch = tensors

    @classmethod
    def from_dict(cls, tensors):
        return cls(tensors)


protocol = types.ModuleType("verl.protocol")
protocol.DataProto = Batch
package = types.ModuleType("verl")
package.__path__ = [str(pathlib.Path(p) / "verl") for p in sys.path if (pathlib.Path(p) / "verl").is_dir()]
package.DataProto = Batch
sys.modules["verl"] = package
sys.modules["verl.protocol"] = protocol

from verl.trainer.ppo import core_algos  # noqa: E402

core_algos.AlgoConfig = type("AlgoConfig", (), {})  # of which no configuration here is

LENGTHS = [7, 1, 13, 20, 4, 3]
TIS, ICEPOP = {"rollout_is_threshold": 2.0}, {"rollout_is_threshold": "0.5_2.0"}
CASES = [
    ("reinforce, token tis", {"loss_type": "reinforce", "rollout_is": "token", **TIS}),
    ("reinforce, sequence tis", {"loss_type": "reinforce", "rollout_is": "sequence", **TIS}),
    ("reinforce, sequence icepop", {"loss_type": "reinforce", "rollout_is": "sequence", **ICEPOP}),
    ("reinforce, sequence tis, rejection", {"loss_type": "reinforce", "rollout_is": "sequence", **TIS,
                                            "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9_1.1"}),
    ("reinforce, two criteria", {"loss_type": "reinforce", "rollout_rs": "token_k1,seq_max_k2",
                                 "rollout_rs_threshold": "0.6_1.7,0.3"}),
] + [(f"ppo_clip, {name}", {"loss_type": "ppo_clip", "rollout_rs": name, "rollout_rs_threshold": bound})
     for name, bound in [("token_k1", "0.7_1.4"), ("token_k2", "0.05"), ("token_k3", "0.05"), ("seq_sum_k1", "0.6_1.6"),
                         ("seq_sum_k2", "0.8"), ("seq_sum_k3", "0.8"), ("seq_mean_k1", "0.9_1.1"), ("seq_mean_k2", "0.06"),
                         ("seq_mean_k3", "0.06"), ("seq_max_k2", "0.3"), ("seq_max_k3", "0.3")]]


class Config:
    """What the losses read of verl's ActorConfig."""

    clip_ratio = clip_ratio_low = 0.2
    clip_ratio_high = 0.28

    def __init__(self, correction):
        self.policy_loss = {"rollout_correction": correction}
        self.global_batch_info = {"dp_size": 1, "batch_num_tokens": sum(LENGTHS), "global_batch_size": len(LENGTHS),
                                  "loss_scale_factor": None}

    def get(self, name, default=None):
        return {"clip_ratio_c": 3.0}.get(name, default)


def padded(values):
    return torch.nn.utils.rnn.pad_sequence(torch.split(values, LENGTHS), batch_first=True)


def main():
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    n = sum(LENGTHS)
    logprob = -torch.rand(n) * 3
    rollout = (logprob + 0.25 * torch.randn(n)).clamp(max=-1e-3)
    advantage = torch.randn(n)
    mask = padded(torch.ones(n)).bool()
    losses = []
    for name, correction in CASES:
        leaf = logprob.clone().requires_grad_()
        loss, _ = core_algos.compute_policy_loss_bypass_mode(
            old_log_prob=padded(rollout), log_prob=padded(leaf), advantages=padded(advantage), response_mask=mask,
            loss_agg_mode="token-mean", config=Config(correction))
        loss.backward()
        losses.append({"name": name, "loss": loss.item(), "gradient": leaf.grad.tolist(), **correction})
    rewards, baselines = torch.randn(n), torch.randn(len(LENGTHS))
    advantages, _ = core_algos.compute_remax_outcome_advantage(padded(rewards), baselines, mask.double())
    golden_file.write_rows(pathlib.Path(__file__).with_name("verl_formulas.json"), {
        "lengths": LENGTHS, "logprob": logprob.tolist(), "rollout": rollout.tolist(), "advantage": advantage.tolist(),
        "bypass": losses, "rewards": rewards.tolist(), "baselines": baselines.tolist(),
        "remax": advantages[mask].tolist()})


if __name__ == "__main__":
    main()
