"""Writes policy_losses.json: policy losses and KL estimates in PyTorch fp64, with gradients by autograd.

An independent transcription of the formulas as the named systems state them, one function each, from which
tests/rl/policy_objective_test.cpp takes its expected values. Run it again after changing a case:
    .env/oracle/bin/python tests/goldens/policy_losses.py
"""

import math
import pathlib

import torch

import golden_file

TOKENS = 48
# Tokens of each sequence, for the ratios of whole sequences.
LENGTHS = [7, 1, 13, 20, 4, 3]


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


def dppo_tv(lp, old, adv, low, high, bound=None):
    """verl's: a detached ratio, bounded above, times the log-prob."""
    moved = (lp.exp() - old.exp()).detach()
    masked = torch.where(adv > 0, moved > high, moved < -low)
    r = torch.exp(lp - old).detach()
    return torch.where(masked, 0.0, -adv * (r if bound is None else torch.clamp(r, max=bound)) * lp)


def dppo_kl(lp, old, adv, low, high):
    """Of the two outcomes "this token" and "another one"."""
    p, q = old.exp(), lp.detach().exp()
    kl = p * (old - lp.detach()) + (1 - p) * torch.log((1 - p + 1e-8) / (1 - q + 1e-8))
    masked = torch.where(adv > 0, (kl > high) & (q > p), (kl > low) & (q < p))
    return torch.where(masked, 0.0, -adv * torch.exp(lp - old).detach() * lp)


def covariance(old, adv):
    return (adv - adv.mean()) * (old - old.mean())


def inside(old, adv, low, high):
    """clip_cov's candidates, which are all chosen where the ratio allows."""
    cov = covariance(old, adv)
    return ((cov > low) & (cov < high)).double()


def largest(old, adv, count):
    chosen = torch.zeros_like(old)
    chosen[torch.topk(covariance(old, adv), count).indices] = 1
    return chosen


def clip_cov(lp, old, adv, chosen, low, high):
    return torch.where(chosen > 0, 0.0, ppo(lp, old, adv, low, high))


def kl_cov(lp, old, adv, chosen, coef):
    loss = -adv * torch.exp(lp - old)
    return torch.where(chosen > 0, loss + coef * (lp - old).abs(), loss)


def per_sequence(x, reduce):
    """reduce() of each sequence's tokens, repeated for each of them."""
    return torch.cat([reduce(part).expand(len(part)) for part in torch.split(x, LENGTHS)])


def gspo(lp, old, adv, low, high):
    """The sequence form itself: one differentiable ratio a sequence, not the token form."""
    s = torch.exp(per_sequence(lp - old, torch.mean))
    return torch.max(-adv * s, -adv * torch.clamp(s, 1 - low, 1 + high))


def gspo_cispo(lp, old, adv, low, high):
    return -torch.clamp(torch.exp(per_sequence(lp - old, torch.mean)), low, high).detach() * adv * lp


def gspo_sapo(lp, old, adv, tau_positive, tau_negative):
    r = torch.exp(per_sequence(lp - old, torch.mean))
    tau = torch.full_like(adv, tau_negative).masked_fill(adv > 0, tau_positive)
    return -adv * (4 / tau) / (1 + torch.exp(-tau * (r - 1)))


def gmpo(lp, old, adv, low, high):
    """verl's geo_mean: the clipped log ratio averaged over the sequence, as one loss a sequence."""
    x = lp - old
    sign = torch.sign(adv)
    g = sign * torch.min(sign * x, sign * torch.clamp(x, -low, high))
    return -adv * torch.exp(per_sequence(g, torch.mean))


def vespo(lp, old, adv, k_positive=2.0, lambda_positive=3.0, k_negative=3.0, lambda_negative=2.0):
    """TRL's: the log-prob weighed by w^k exp(lambda (1 - w)), w the product of a sequence's ratios, held fixed."""
    log_w = torch.clamp(per_sequence((lp - old).detach(), torch.sum), math.log(1e-8), 20)
    k = torch.full_like(adv, k_negative).masked_fill(adv >= 0, k_positive)
    decay = torch.full_like(adv, lambda_negative).masked_fill(adv >= 0, lambda_positive)
    return -torch.exp(log_w) ** k * torch.exp(decay * (1 - torch.exp(log_w))) * adv * lp


def kl(name, lp, ref, old, k3_bound=None, bound=None):
    """k3_bound as verl's kl_penalty, bound as OpenRLHF's and AReaL's: torch.clamp, whose gradient is 0 beyond."""
    d = lp - ref
    k2 = d * d / 2
    plain = {"k1": d, "abs": torch.abs(d), "k2": k2, "k3": torch.exp(-d) - 1 + d}
    if k3_bound is not None:
        x = torch.clamp(-d, -20, 20)
        plain["k3"] = torch.clamp(torch.exp(x) - x - 1, -k3_bound, k3_bound)
    if bound is not None:
        plain = {n: torch.clamp(v, -bound, bound) for n, v in plain.items()}
    if name in plain:
        return plain[name]
    if name == "k3_unbiased":
        return plain["k3"] * torch.exp(lp - old)
    if name == "k3_score":
        return plain["k3"] * torch.exp(lp - lp.detach())
    if name == "k3_unbiased of sequences":
        return plain["k3"] * torch.exp(per_sequence(lp - old, torch.mean))
    return k2 - k2.detach() + plain[name.removesuffix("_straight")].detach()


# name of the case: keys of `algorithm`, the function of (logprob, old, advantage)
LOSSES = {
    "ppo": ({}, lambda lp, old, a: ppo(lp, old, a, 0.2, 0.2)),
    "clip-higher": ({"clip_high": 0.28}, lambda lp, old, a: ppo(lp, old, a, 0.2, 0.28)),
    "dual clip": ({"ppo_clip.dual_clip": 1.5}, lambda lp, old, a: ppo(lp, old, a, 0.2, 0.2, dual=1.5)),
    "two-sided": ({"ppo_clip.delta": 1.4}, lambda lp, old, a: ppo(lp, old, a, 0.2, 0.2, delta=1.4)),
    "cispo relative": ({"loss": "cispo"}, lambda lp, old, a: cispo(lp, old, a, 0.8, 1.2)),
    "cispo absolute": (
        {"loss": "cispo", "cispo.bounds": "absolute", "clip_low": 0.0, "clip_high": 1.3},
        lambda lp, old, a: cispo(lp, old, a, 0.0, 1.3),
    ),
    "sapo": ({"loss": "sapo"}, lambda lp, old, a: sapo(lp, old, a, 1.0, 1.05)),
    "sapo, other gates": (
        {"loss": "sapo", "sapo.tau_positive": 2.0, "sapo.tau_negative": 0.5},
        lambda lp, old, a: sapo(lp, old, a, 2.0, 0.5),
    ),
    "dppo": ({"loss": "dppo_tv", "clip_low": 0.05, "clip_high": 0.1}, lambda lp, old, a: dppo_tv(lp, old, a, 0.05, 0.1)),
    "dppo, bounded ratio": (
        {"loss": "dppo_tv", "clip_low": 0.3, "clip_high": 0.3, "dppo.ratio_bound": 1.2},
        lambda lp, old, a: dppo_tv(lp, old, a, 0.3, 0.3, 1.2),
    ),
    "dppo_kl": (
        {"loss": "dppo_kl", "clip_low": 0.01, "clip_high": 0.02},
        lambda lp, old, a: dppo_kl(lp, old, a, 0.01, 0.02),
    ),
    "reinforce": ({"loss": "reinforce"}, lambda lp, old, a: -a * lp),
    "dro": (
        {"loss": "dro", "dro.beta": 0.6},
        lambda lp, old, a: -(lp * a - 0.5 * 0.6 * (lp - old) ** 2),  # verl's
    ),
}
SEQUENCE_LOSSES = {
    "gspo": (
        {"importance_level": "sequence", "clip_low": 0.05, "clip_high": 0.08},
        lambda lp, old, a: gspo(lp, old, a, 0.05, 0.08),
    ),
    "cispo of sequences": (
        {"importance_level": "sequence", "loss": "cispo"},
        lambda lp, old, a: gspo_cispo(lp, old, a, 0.8, 1.2),
    ),
    "sapo of sequences": (
        {"importance_level": "sequence", "loss": "sapo"},
        lambda lp, old, a: gspo_sapo(lp, old, a, 1.0, 1.05),
    ),
    "gmpo": (
        {"loss": "gmpo", "clip_low": 0.3, "clip_high": 0.4},
        lambda lp, old, a: gmpo(lp, old, a, 0.3, 0.4),
    ),
    "vespo": ({"loss": "vespo"}, vespo),
    "vespo, other weights": (
        {"loss": "vespo", "vespo.k_positive": 0.5, "vespo.lambda_positive": 0.25}
        | {"vespo.k_negative": 1.5, "vespo.lambda_negative": 0.75},
        lambda lp, old, a: vespo(lp, old, a, 0.5, 0.25, 1.5, 0.75),
    ),
}
KLS = ["k1", "abs", "k2", "k3", "k1_straight", "abs_straight", "k3_straight", "k3_score", "k3_unbiased"]
# keys, the tokens that are chosen of (old, advantage), the loss of (logprob, old, advantage, chosen)
COVARIANCE_LOSSES = [
    (
        {"loss": "clip_cov", "clip_high": 0.28, "clip_cov.ratio": 1.0, "clip_cov.lb": 0.2, "clip_cov.ub": 1.5},
        lambda old, a: inside(old, a, 0.2, 1.5),
        lambda lp, old, a, chosen: clip_cov(lp, old, a, chosen, 0.2, 0.28),
    ),
    (
        {"loss": "kl_cov", "kl_cov.ratio": 0.25, "kl_cov.kl_coef": 0.7},
        lambda old, a: largest(old, a, int(0.25 * TOKENS)),
        lambda lp, old, a, chosen: kl_cov(lp, old, a, chosen, 0.7),
    ),
]
# Bounds that many tokens' estimates are beyond.
KL_BOUNDS = [{"k3_bound": 0.03}, {"kl_bound": 0.25}, {"k3_bound": 0.05, "kl_bound": 0.02}]


TOKEN_WEIGHTS = torch.linspace(0.5, 1.5, TOKENS, dtype=torch.float64)


def evaluate(function, logprob, weights=TOKEN_WEIGHTS):
    """The values per token and the gradient of their weighted sum."""
    lp = logprob.clone().requires_grad_()
    values = function(lp)
    (values * weights).sum().backward()
    return {"value": values.tolist(), "gradient": lp.grad.tolist()}


def whole_loss(lp, entropy, t, kl_coef, entropy_coef, opsm_delta, aggregation):
    """correction x clipped loss without off-policy sequences + KL, weighted, less the entropy bonus."""
    per_token = ppo(lp, t["old"], t["sequence_advantage"], 0.2, 0.2) * t["correction"]
    if opsm_delta > 0:
        drift = per_sequence((t["rollout"] - lp).detach(), torch.mean)
        per_token = torch.where((t["sequence_advantage"] < 0) & (drift > opsm_delta), 0.0, per_token)
    per_token = per_token + kl_coef * kl("k3", lp, t["reference"], t["old"])
    bonus = entropy.mean() if aggregation == "tokens" else (entropy * t["sequence_weight"]).sum()
    return (per_token * t["sequence_weight"]).sum() - entropy_coef * bonus


def main() -> None:
    generator = torch.Generator().manual_seed(20)

    def draw(scale):
        return torch.randn(TOKENS, generator=generator, dtype=torch.float64) * scale

    old = -draw(1.0).abs() - 0.05
    logprob = torch.clamp(old + draw(0.35), max=-1e-3)
    reference = torch.clamp(logprob + draw(0.4), max=-1e-3)
    advantage = draw(1.2)
    advantage[::11] = 0.0
    # One advantage and one weight a sequence: what the token form of a sequence's ratio is exact for.
    sequence_advantage = torch.repeat_interleave(draw(1.2)[: len(LENGTHS)], torch.tensor(LENGTHS))
    sequence_weight = torch.repeat_interleave(draw(1.0)[: len(LENGTHS)].abs() + 0.1, torch.tensor(LENGTHS))
    tokens = {
        "old": old,
        "reference": reference,
        "sequence_advantage": sequence_advantage,
        "sequence_weight": sequence_weight,
        "rollout": old + draw(0.3),
        "correction": draw(0.5).abs(),
    }
    entropy = draw(1.0).abs()
    whole = []
    plain = [(0, 0, 0), (0.3, 0.2, 0), (0, 0, 0.01), (0.1, 0.05, 0.02)]
    for kl_coef, entropy_coef, opsm_delta, aggregation in [*((*c, "tokens") for c in plain), (0.1, 0.05, 0, "loss")]:
        lp, h = logprob.clone().requires_grad_(), entropy.clone().requires_grad_()
        loss = whole_loss(lp, h, tokens, kl_coef, entropy_coef, opsm_delta, aggregation)
        loss.backward()
        whole.append(
            {
                "kl_coef": kl_coef,
                "entropy_coef": entropy_coef,
                "opsm_delta": opsm_delta,
                "entropy_aggregation": aggregation,
                "loss": loss.item(),
                "gradient": lp.grad.tolist(),
                "entropy_gradient": torch.zeros(TOKENS).tolist() if h.grad is None else h.grad.tolist(),
            }
        )
    goldens = {
        "lengths": LENGTHS,
        "entropy": entropy.tolist(),
        **{name: tokens[name].tolist() for name in ("sequence_advantage", "sequence_weight", "rollout", "correction")},
        "whole": whole,
        "sequence_losses": [
            {
                "name": name,
                "keys": keys,
                **evaluate(lambda lp, f=function: f(lp, old, sequence_advantage), logprob, sequence_weight),
            }
            for name, (keys, function) in SEQUENCE_LOSSES.items()
        ],
        "sequence_kl": evaluate(
            lambda lp: kl("k3_unbiased of sequences", lp, reference, old), logprob, sequence_weight
        ),
        "logprob": logprob.tolist(),
        "old": old.tolist(),
        "reference": reference.tolist(),
        "advantage": advantage.tolist(),
        "losses": [
            {"name": name, "keys": keys, **evaluate(lambda lp, f=function: f(lp, old, advantage), logprob)}
            for name, (keys, function) in LOSSES.items()
        ],
        "covariance": covariance(old, advantage).tolist(),
        "covariance_losses": [
            {
                "keys": keys,
                "chosen": choose(old, advantage).tolist(),
                **evaluate(lambda lp, f=function, c=choose(old, advantage): f(lp, old, advantage, c), logprob),
            }
            for keys, choose, function in COVARIANCE_LOSSES
        ],
        "kl": [{"name": name, **evaluate(lambda lp, n=name: kl(n, lp, reference, old), logprob)} for name in KLS],
        "bounded_kl": [
            {
                "keys": {"kl_estimator": name, **keys},
                **evaluate(
                    lambda lp, n=name, k=keys: kl(n, lp, reference, old, k.get("k3_bound"), k.get("kl_bound")), logprob
                ),
            }
            for name in KLS
            for keys in KL_BOUNDS
        ],
    }
    target = pathlib.Path(__file__).with_suffix(".json")
    golden_file.write_rows(target, goldens)
    print(f"{target.name}: {len(LOSSES) + len(SEQUENCE_LOSSES)} losses, {len(KLS)} KL estimates of {TOKENS} tokens")


if __name__ == "__main__":
    main()
