"""Writes policy_losses.json: policy losses and KL estimates in PyTorch fp64, with gradients by autograd.

An independent transcription of the formulas as the named systems state them, one function each, from which
tests/rl/policy_objective_test.cpp takes its expected values. Run it again after changing a case:
    .env/oracle/bin/python tests/goldens/policy_losses.py
"""

import json
import pathlib

import torch

TOKENS = 48


def ppo(lp, old, adv, low, high, dual=None, delta=None):
    r = torch.exp(lp - old)
    first = r if delta is None else torch.clamp(r, max=delta)
    loss = torch.max(-adv * first, -adv * torch.clamp(r, 1 - low, 1 + high))
    if dual is not None:
        loss = torch.where(adv < 0, torch.min(loss, -adv * dual), loss)
    return loss


def cispo(lp, old, adv, low, high):
    return -torch.clamp(torch.exp(lp - old), low, high).detach() * adv * lp


def sapo(lp, old, adv, tau_positive, tau_negative):
    r = torch.exp(lp - old)
    tau = torch.full_like(adv, tau_negative).masked_fill(adv > 0, tau_positive)  # where() of two numbers would be fp32
    return -adv * (4 / tau) / (1 + torch.exp(-tau * (r - 1)))


def dppo_tv(lp, old, adv, low, high):
    moved = (lp.exp() - old.exp()).detach()
    masked = torch.where(adv > 0, moved > high, moved < -low)
    return torch.where(masked, 0.0, -adv * torch.exp(lp - old))


def kl(name, lp, ref, old):
    d = lp - ref
    k2 = d * d / 2
    plain = {"k1": d, "abs": torch.abs(d), "k2": k2, "k3": torch.exp(-d) - 1 + d}
    if name in plain:
        return plain[name]
    if name == "k3_unbiased":
        return plain["k3"] * torch.exp(lp - old)
    return k2 - k2.detach() + plain[name.removesuffix("_straight")].detach()


# name of the case: keys of `algorithm`, the function of (logprob, old, advantage)
LOSSES = {
    "ppo": ({}, lambda lp, old, a: ppo(lp, old, a, 0.2, 0.2)),
    "clip-higher": ({"clip_high": 0.28}, lambda lp, old, a: ppo(lp, old, a, 0.2, 0.28)),
    "dual clip": ({"dual_clip": 1.5}, lambda lp, old, a: ppo(lp, old, a, 0.2, 0.2, dual=1.5)),
    "two-sided": ({"delta": 1.4}, lambda lp, old, a: ppo(lp, old, a, 0.2, 0.2, delta=1.4)),
    "cispo relative": ({"loss": "cispo"}, lambda lp, old, a: cispo(lp, old, a, 0.8, 1.2)),
    "cispo absolute": (
        {"loss": "cispo", "cispo_bounds": "absolute", "clip_low": 0.0, "clip_high": 1.3},
        lambda lp, old, a: cispo(lp, old, a, 0.0, 1.3),
    ),
    "sapo": ({"loss": "sapo"}, lambda lp, old, a: sapo(lp, old, a, 1.0, 1.05)),
    "sapo, other gates": (
        {"loss": "sapo", "sapo_tau_positive": 2.0, "sapo_tau_negative": 0.5},
        lambda lp, old, a: sapo(lp, old, a, 2.0, 0.5),
    ),
    "dppo": ({"loss": "dppo_tv", "clip_low": 0.05, "clip_high": 0.1}, lambda lp, old, a: dppo_tv(lp, old, a, 0.05, 0.1)),
    "reinforce": ({"loss": "reinforce"}, lambda lp, old, a: -a * lp),
}
KLS = ["k1", "abs", "k2", "k3", "k1_straight", "abs_straight", "k3_straight", "k3_unbiased"]


def evaluate(function, logprob):
    """The values per token and the gradient of their weighted sum; the weights differ by token."""
    lp = logprob.clone().requires_grad_()
    values = function(lp)
    (values * torch.linspace(0.5, 1.5, TOKENS, dtype=torch.float64)).sum().backward()
    return {"value": values.tolist(), "gradient": lp.grad.tolist()}


def main() -> None:
    generator = torch.Generator().manual_seed(20)

    def draw(scale):
        return torch.randn(TOKENS, generator=generator, dtype=torch.float64) * scale

    old = -draw(1.0).abs() - 0.05
    logprob = torch.clamp(old + draw(0.35), max=-1e-3)
    reference = torch.clamp(logprob + draw(0.4), max=-1e-3)
    advantage = draw(1.2)
    advantage[::11] = 0.0
    goldens = {
        "logprob": logprob.tolist(),
        "old": old.tolist(),
        "reference": reference.tolist(),
        "advantage": advantage.tolist(),
        "losses": [
            {"name": name, "keys": keys, **evaluate(lambda lp, f=function: f(lp, old, advantage), logprob)}
            for name, (keys, function) in LOSSES.items()
        ],
        "kl": [{"name": name, **evaluate(lambda lp, n=name: kl(n, lp, reference, old), logprob)} for name in KLS],
    }
    target = pathlib.Path(__file__).with_suffix(".json")
    target.write_text(json.dumps(goldens, indent=0) + "\n")
    print(f"{target.name}: {len(LOSSES)} losses, {len(KLS)} KL estimates of {TOKENS} tokens")


if __name__ == "__main__":
    main()
