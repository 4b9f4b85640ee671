"""Writes value_loss.json: the value model's loss and metrics in PyTorch fp64, with gradients by autograd.

An independent transcription of the formulas as verl states them (core_algos.compute_value_loss, token-mean, and the
critic metrics of metric_utils without their 1e-5), from which tests/rl/critic_test.cpp takes its expected values. Run it again
after changing a case:
    .env/oracle/bin/python tests/goldens/value_loss.py
"""

import pathlib

import torch

import golden_file

TOKENS = 40
CLIPS = [0.0, 0.2, 0.5, 2.0]


def per_token(value, old, returns, clip):
    error = (value - returns) ** 2
    if clip == 0.0:
        return error / 2, torch.zeros_like(error)
    bounded = torch.max(torch.min(value, old + clip), old - clip)
    bounded_error = (bounded - returns) ** 2
    return torch.where(bounded_error > error, bounded_error, error) / 2, (bounded_error > error).double()


def evaluate(value, old, returns, clip):
    v = value.clone().requires_grad_()
    losses, clipped = per_token(v, old, returns, clip)
    loss = losses.mean()
    loss.backward()
    return {"clip": clip, "loss": loss.item(), "clipfrac": clipped.mean().item(), "gradient": v.grad.tolist()}


def main() -> None:
    generator = torch.Generator().manual_seed(7)

    def draw(scale):
        return torch.randn(TOKENS, generator=generator, dtype=torch.float64) * scale

    returns = draw(1.0) + 0.4
    old = 0.6 * returns + draw(0.5)
    value = old + draw(0.6)
    cases = [evaluate(value, old, returns, clip) for clip in CLIPS]
    goldens = {
        "value": value.tolist(),
        "old": old.tolist(),
        "returns": returns.tolist(),
        "cases": cases,
        "metrics": {
            "vf_explained_var": (1 - torch.var(returns - old) / torch.var(returns)).item(),
            "values/mean": old.mean().item(),
            "values/min": old.min().item(),
            "values/max": old.max().item(),
            "returns/mean": returns.mean().item(),
        },
    }
    target = pathlib.Path(__file__).with_suffix(".json")
    golden_file.write_rows(target, goldens)
    fractions = ", ".join(f"{case['clipfrac']:.3f} at {case['clip']}" for case in cases)
    print(f"{target.name}: {len(cases)} clips of {TOKENS} tokens; clipped {fractions}")


if __name__ == "__main__":
    main()
