"""Writes advantages.json: advantages of loss tokens and corrections of the rollout policy in PyTorch fp64.

An independent transcription on padded tensors with a response mask, tokens of the environment between turns masked out, as
the named systems compute it. tests/rl/token_advantages_test.cpp and correction_test.cpp, whose table holds the unmasked tokens
alone, take their expected values from it. Run it again after changing a case:
    .env/oracle/bin/python tests/goldens/advantages.py
"""

import itertools
import json
import pathlib

import torch

F64 = torch.float64
STDS = {
    "group_mean": ["group", "batch", "leave_one_out", "none"],
    "rloo": ["group", "batch", "leave_one_out", "none"],
    "pass_at_k": ["group", "none"],
    "gdpo": ["group", "none"],
    "max_rl": ["group"],
    "opo": ["group"],
    "optimal_token_baseline": ["group"],
    "reinforce": ["group"],
    "gae": ["group"],
}
PLAIN = {"k3_bound": 0.0, "kl_bound": 0.0, "kl_average": "tokens", "whiten_eps_in": "variance", "gpg_scale": False}
KLS = ["k1", "abs", "k2", "k3", "k1_straight", "abs_straight", "k3_straight", "k3_score", "k3_unbiased"]


def kl_of(c, lp, other):
    name = c["kl_estimator"].split("_")[0]
    d = lp - other
    kl = {"k1": d, "abs": d.abs(), "k2": 0.5 * d**2, "k3": torch.exp(other - lp) - 1 - (other - lp)}[name]
    if c["k3_bound"] and name == "k3":  # verl's kl_penalty
        x = torch.clamp(other - lp, -20, 20)
        kl = torch.clamp(torch.exp(x) - x - 1, -c["k3_bound"], c["k3_bound"])
    return torch.clamp(kl, -c["kl_bound"], c["kl_bound"]) if c["kl_bound"] else kl  # OpenRLHF, AReaL


def std_of(x, unbiased):
    return torch.std(x, correction=1 if unbiased else 0) if len(x) > 1 else torch.zeros((), dtype=F64)


def normalised(x, eps, unbiased):
    """TRL's and verl's (x - mean) / (std + eps)."""
    return (x - x.mean()) / (std_of(x, unbiased) + eps)


def of_groups(scores, there, lengths, g, c):
    """One advantage a sample of group_mean, rloo, pass_at_k, max_rl and opo, over the samples that are there; 0 for the others."""
    out = torch.zeros_like(scores)
    for members in torch.arange(len(scores)).split(g):
        members = members[there[members]]
        if len(members) > 1:
            out[members] = of_group(scores[members], lengths[members], scores[there], c)
    if c["gpg_scale"]:  # verl's alpha of gpg
        out = out * there.sum() / torch.count_nonzero(scores[there]).clamp(min=1)
    return out


def of_group(group, lengths, scores, c):
    if c["estimator"] == "opo":  # verl's
        return group - (lengths * group).sum() / lengths.sum()
    out = []
    for i in range(len(group)):
        others = torch.cat([group[:i], group[i + 1 :]])
        divisor = torch.ones((), dtype=F64)
        if c["std"] == "group":
            divisor = std_of(group, c["unbiased"]) + c["eps"]
        elif c["std"] == "batch":
            divisor = std_of(scores, c["unbiased"]) + c["eps"]
        elif c["std"] == "leave_one_out" and std_of(others, c["unbiased"]) > 0:
            divisor = std_of(others, c["unbiased"]) + c["eps"]
        if c["estimator"] == "group_mean":
            out.append((group[i] - group.mean()) / divisor)
        elif c["estimator"] == "rloo":
            out.append((group[i] - others.mean()) / divisor)
        elif c["estimator"] == "pass_at_k":
            top = torch.topk(group, 2)
            out.append((top.values[0] - top.values[1]) / divisor if i == int(top.indices[0]) else 0 * group[i])
        else:
            out.append((group[i] - group.mean()) / group.mean() if group.mean() > 0 else 0 * group[i])
    return torch.stack(out)


def gdpo(columns, weights, there, g, c):
    total = torch.zeros_like(columns[0])
    for column, weight in zip(columns, weights):
        for members in torch.arange(len(column)).split(g):
            part = column[members[there[members]]]
            part = normalised(part, c["eps"], c["unbiased"]) if c["std"] == "group" else part - part.mean()
            total[members[there[members]]] += weight * part
    total[there] = normalised(total[there], c["eps"], c["unbiased"])
    return total


def returns_to_go(rewards, mask, gamma):
    """Masked positions pass the return on undiscounted: only loss tokens are steps."""
    out, running = torch.zeros_like(rewards), torch.zeros(len(rewards), dtype=F64)
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(mask[:, t] > 0, rewards[:, t] + gamma * running, running)
        out[:, t] = running * mask[:, t]
    return out


def gae(rewards, values, mask, gamma, lam):
    """verl's: masked positions carry the next value and the last advantage."""
    next_value, last = torch.zeros(len(rewards), dtype=F64), torch.zeros(len(rewards), dtype=F64)
    reverse = []
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        fresh = delta + gamma * lam * last
        next_value = values[:, t] * mask[:, t] + (1 - mask[:, t]) * next_value
        last = fresh * mask[:, t] + (1 - mask[:, t]) * last
        reverse.append(last)
    advantages = torch.stack(reverse[::-1], dim=1)
    return advantages, advantages + values


def token_baselines(returns, b, g):
    """verl's tir_optimal_token_baseline: the loss tokens of each sample moved to the left, then column by column."""
    mask, width = b["mask"], int(b["mask"].sum(1).max())
    w = 1 - 2 * b["old"].exp() + b["squares"]
    if "correction" in b:
        w = w * b["correction"] ** 2
    w = (w * mask).cumsum(1)
    left = {name: torch.zeros(len(mask), width, dtype=F64) for name in ("w", "returns", "baseline")}
    for i, row in enumerate(mask.bool()):
        left["w"][i, : row.sum()], left["returns"][i, : row.sum()] = w[i, row], returns[i, row]
    lengths = mask.sum(1).to(torch.int64)
    for members in torch.arange(len(mask)).split(g):
        members = members[lengths[members] > 0]
        if len(members) < 2:
            continue
        weight = left["w"][members]
        left["baseline"][members] = (left["returns"][members] * weight).sum(0) / (weight.sum(0) + 1e-8)
        order = lengths[members].argsort(descending=True)
        longest, second = members[order[0]], members[order[1]]
        if lengths[longest] > lengths[second]:
            left["baseline"][longest, lengths[second] :] = 0
    out = torch.zeros_like(returns)
    for i, row in enumerate(mask.bool()):
        out[i, row] = left["baseline"][i, : lengths[i]]
    return out


def whitened(x, mask, c):
    if c["whiten"] == "tokens":
        counted, n = x, mask.sum()
        mean = (counted * mask).sum() / n
        var = ((counted - mean) ** 2 * mask).sum() / n
    else:
        filled = mask.sum(1) > 0
        counted = ((x * mask).sum(1) / mask.sum(1).clamp(min=1))[filled]
        n, mean = filled.sum(), counted.mean()
        var = ((counted - mean) ** 2).mean()
    if c["unbiased"]:
        var = var * n / (n - 1)
    if c["whiten_eps_in"] == "std":  # AReaL
        return (x - mean) / (var.sqrt() + c["whiten_eps"])
    return (x - mean) * torch.rsqrt(var + c["whiten_eps"])


def advantages(b, c):
    mask, g = b["mask"], b["group_size"]
    kl = torch.zeros_like(mask)
    if c["kl_in"] != "loss":
        kl = kl_of(c, b["old"], b[c["kl_to"]]) * mask
    last = [row.nonzero()[-1].item() if row.any() else None for row in mask]
    turn_sum = torch.zeros(len(mask), dtype=F64)
    for sample, _, value in b["turns"]:
        turn_sum[sample] += value
    returns = None
    if c["estimator"] in ("reinforce", "gae", "optimal_token_baseline"):
        rewards = -c["kl_coef"] * kl
        for sample, position in enumerate(last):
            if position is not None:
                rewards[sample, position] += b["total"][sample]
        for sample, position, value in b["turns"]:
            if last[sample] is not None:
                rewards[sample, position] += value
        if c["estimator"] == "gae":
            out, returns = gae(rewards, b["value"] * mask, mask, c["gamma"], c["lambda"])
        else:
            out = returns_to_go(rewards, mask, c["gamma"])
            if c["estimator"] == "optimal_token_baseline":
                out = (out - token_baselines(out, b, g)) * mask
    else:
        cost = c["kl_coef"] * kl.sum(1) if c["kl_in"] == "reward" else torch.zeros(len(mask), dtype=F64)
        if c["estimator"] == "gdpo":
            scores = gdpo([*b["by_name"], turn_sum - cost], [*b["weight"], 1.0], b["there"], g, c)
        else:
            scores = of_groups(b["total"] + turn_sum - cost, b["there"], mask.sum(1), g, c)
        out = scores[:, None] * mask
        if c["kl_in"] == "advantage":
            out = out - c["kl_coef"] * returns_to_go(kl, mask, c["gamma"])
    if c["whiten"] != "none":
        out = whitened(out, mask, c)
    # What an adaptive coefficient sees: of verl's controller the mean over samples of their mean.
    of_samples = (kl.sum(1) / mask.sum(1).clamp(min=1))[b["there"]].mean()
    mean_kl = of_samples if c["kl_average"] == "samples" else kl.sum() / mask.sum()
    result = {"advantage": out[mask > 0].tolist(), "kl": mean_kl.item()}
    if returns is not None:
        result["returns"] = returns[mask > 0].tolist()
    return result


def rejected(log_ratio, mask, criteria):
    """verl's rollout_rs: which tokens each of the criteria keeps. log_ratio: old - rollout."""
    safe = log_ratio.clamp(-20, 20)
    token = {"k1": -safe, "k2": safe**2 / 2, "k3": safe.exp() - 1 - safe}
    keep = torch.ones_like(mask, dtype=torch.bool)
    for criterion in criteria:
        over, kind = criterion["by"].rsplit("_", 1)
        value = token[kind]
        if over == "seq_sum":
            value = (value * mask).sum(1, keepdim=True)
        elif over == "seq_mean":
            value = (value * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        elif over == "seq_max":
            value = value.masked_fill(mask == 0, -torch.inf).amax(1, keepdim=True)
        if kind == "k1":
            lower = criterion.get("low", 1 / criterion["high"])
            keep = keep & (value >= torch.tensor(lower, dtype=F64).log()) & (value <= torch.tensor(criterion["high"], dtype=F64).log())
        else:
            keep = keep & (value <= criterion["high"])
    return ~keep


def normalised_weights(weight, mask, level):
    """verl's rollout_is_batch_normalize."""
    if level == "token":
        mean = (weight * mask).sum() / mask.sum()
    else:
        filled = mask.sum(1) > 0
        mean = ((weight * mask).sum(1) / mask.sum(1).clamp(min=1))[filled].mean()
    return weight / mean if mean > 1e-8 else weight


def correction(b, mode, level, low, high, token_high=0.0, reject=(), normalize=False):
    mask = b["mask"]
    n, valid = mask.sum(1), mask.sum(1) > 0
    log_ratio = (b["old"] - b["rollout"]) * mask

    def token_mean(x):
        return ((x * mask).sum() / mask.sum()).item()

    total = log_ratio.sum(1, keepdim=True)
    geometric = total / n[:, None].clamp(min=1)
    log_at = {"token": log_ratio, "sequence": total, "geometric": geometric}[level].clamp(-20, 20)
    ratio = torch.exp(log_at).expand_as(mask)
    inside = (ratio >= low) & (ratio <= high)
    kept = (torch.exp(geometric) >= low) & (torch.exp(geometric) <= high)
    weight = {
        "none": torch.ones_like(mask),
        "tis": ratio.clamp(low, high),
        "icepop": torch.where(inside, ratio, 0.0),
        "mask": inside.to(F64),
        "seq_mask_tis": torch.exp(log_ratio.clamp(-20, 20)).clamp(max=token_high or torch.inf) * kept,
    }[mode]
    w = ratio.clamp(low, high) if mode in ("none", "mask") else weight
    drop = rejected(log_ratio, mask, reject)
    outside = drop | (~inside if mode == "mask" else ~kept if mode == "seq_mask_tis" else torch.zeros_like(drop))
    weight = normalised_weights(weight, mask, level) if normalize else weight
    weight = torch.where(drop, 0.0, weight)
    floor = low if low > 0 else 1 / high

    def share(outside):
        return token_mean(outside.to(F64)) if level == "token" else outside[:, 0][valid].to(F64).mean().item()

    def mean_of(logprob):
        return ((logprob * mask).sum(1) / n.clamp(min=1))[valid]

    return {
        "weight": weight[mask > 0].tolist(),
        "kept": (~outside.expand_as(mask))[mask > 0].tolist(),
        "statistics": {
            "kl": token_mean(b["rollout"] - b["old"]),
            "k3_kl": token_mean(torch.exp(log_ratio.clamp(-20, 20)) - 1 - log_ratio.clamp(-20, 20)),
            "chi2_token": token_mean(torch.exp(log_ratio.clamp(-20, 20)) ** 2) - 1,
            "chi2_seq": (torch.exp(2 * total.clamp(-20, 20))[valid].mean() - 1).item(),
            "rollout_is_mean": token_mean(w),
            "rollout_is_eff_sample_size": 1 / token_mean((w / token_mean(w)) ** 2) if token_mean(w) > 0 else 0.0,
            "rollout_is_ratio_fraction_high": share(ratio > high),
            "rollout_is_ratio_fraction_low": share(ratio < floor),
            "rollout_rs_masked_fraction": token_mean((weight == 0).to(F64)),
            "training_ppl": torch.exp(-mean_of(b["old"])).mean().item(),
            "rollout_ppl": torch.exp(-mean_of(b["rollout"])).mean().item(),
            "ppl_ratio": torch.exp(mean_of(b["rollout"]) - mean_of(b["old"])).mean().item(),
            "token_mult_prob_error": token_mean(torch.exp(log_ratio.abs().clamp(max=20))),
        },
    }


def make_batch(generator, groups, group_size, length, with_turns, outlier, failed=()):
    samples = groups * group_size

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=F64)

    mask = (torch.rand(samples, length, generator=generator) < 0.6).to(F64)
    mask[1] = 0  # samples without a loss token, one of them the last
    mask[-1] = 0
    mask[list(failed)] = 0
    mask[2] = torch.tensor([1.0, 0, 0, 1.0] + [0.0] * (length - 4))
    by_name = torch.stack([(draw(samples) > 0).to(F64), draw(samples).round(decimals=3), 0.1 * draw(samples)])
    by_name[:, group_size : 2 * group_size] = 0.5  # a group of equal rewards
    old = -draw(samples, length).abs() - 0.05
    rollout = old + 0.35 * draw(samples, length)
    if outlier:
        rollout[0] = old[0] - 30  # beyond the bound of the log-ratio
    weight = [1.0, 0.5, -0.25]
    turns = []
    if with_turns:
        turns = [(0, int(mask[0].nonzero()[0]), 0.7), (1, 0, -0.4), (samples - 2, int(mask[-2].nonzero()[-1]), 0.3)]
        turns.append((0, turns[0][1], 0.05))  # two at one token
    return {
        "mask": mask,
        "there": torch.tensor([i not in failed for i in range(samples)]),
        "group_size": group_size,
        "by_name": by_name,
        "weight": weight,
        "total": sum(w * column for w, column in zip(weight, by_name)),
        "turns": turns,
        "old": old,
        "rollout": rollout,
        "reference": old + 0.4 * draw(samples, length),
        "value": draw(samples, length),
        # Of a distribution that holds the token's probability, and the rest in one to some hundred parts.
        "squares": old.exp() ** 2 + (1 - old.exp()) ** 2 * torch.rand(samples, length, generator=generator, dtype=F64),
    }


def table(b):
    """What the C++ table holds: the unmasked tokens."""
    mask = b["mask"]
    index = mask.flatten().cumsum(0).reshape(mask.shape) - 1
    begin = [0, *mask.sum(1).cumsum(0).to(torch.int64).tolist()]
    return {
        "group_size": b["group_size"],
        "scored": b["there"].tolist(),
        "begin": begin,
        "by_name": b["by_name"].tolist(),
        "weight": b["weight"],
        "total": b["total"].tolist(),
        "turns": [[s, int(index[s, p]), value] for s, p, value in b["turns"]],
        **{name: b[name][mask > 0].tolist() for name in ("old", "rollout", "reference", "value", "squares")},
    }


def choices():
    number = 0
    for estimator, stds in STDS.items():
        for std, unbiased, whiten, kl_in in itertools.product(
            stds, [True, False], ["none", "tokens", "sequences"], ["loss", "reward", "advantage"]
        ):
            gamma, lam = [(1.0, 1.0), (0.9, 0.95), (1.0, 0.8)][number % 3 if whiten == "none" else (number // 3) % 3]
            yield {
                "estimator": estimator,
                "std": std,
                "unbiased": unbiased,
                "whiten": whiten,
                "whiten_eps": [1e-8, 1e-5][number % 2],
                "eps": [1e-4, 1e-6][(number // 2) % 2],
                "gamma": gamma,
                "lambda": lam,
                "kl_in": kl_in,
                "kl_to": ["reference", "rollout"][(number // 5) % 2],
                "kl_estimator": KLS[number % len(KLS)],
                "kl_coef": 0.05,
                **PLAIN,
            }
            number += 1


def further_choices():
    """Of keys that stand at their default above."""
    for estimator, kl_in, whiten, more in itertools.product(
        ["group_mean", "rloo", "gdpo", "reinforce"],
        ["reward", "advantage"],
        ["none", "tokens", "sequences"],
        [{"k3_bound": 0.05}, {"kl_bound": 0.04}, {"kl_average": "samples"}, {"whiten_eps_in": "std", "whiten_eps": 0.01}],
    ):
        base = {"std": "group", "unbiased": True, "whiten_eps": 1e-8, "eps": 1e-4, "gamma": 1.0, "lambda": 1.0}
        kl = {"kl_in": kl_in, "kl_to": "reference", "kl_estimator": "k3", "kl_coef": 0.05}
        yield {"estimator": estimator, "whiten": whiten, **base, **kl, **PLAIN, **more}


def gpg_choices():
    for estimator, std in [("group_mean", "none"), ("group_mean", "group"), ("rloo", "none"), ("opo", "group")]:
        base = {"std": std, "unbiased": True, "whiten": "none", "whiten_eps": 1e-8, "eps": 1e-4, "gamma": 1.0, "lambda": 1.0}
        kl = {"kl_in": "loss", "kl_to": "reference", "kl_estimator": "k3", "kl_coef": 0.0}
        yield {"estimator": estimator, **base, **kl, **PLAIN, "gpg_scale": True}


def rejections():
    """Modes with criteria beside them: keys of verl's presets decoupled_*, and each criterion."""
    of_ratio = [("token_k1", 0.8, 1.3), ("seq_sum_k1", 0.5, 2.0), ("seq_mean_k1", 0.9, 1.15)]
    for by, low, high in of_ratio:
        yield {"mode": "none", "level": "token", "reject": [{"by": by, "low": low, "high": high}]}
        yield {"mode": "none", "level": "token", "reject": [{"by": by, "high": high}]}
    limits = {"token_k2": 0.03, "token_k3": 0.04, "seq_sum_k2": 0.2, "seq_sum_k3": 0.15}
    limits |= {"seq_mean_k2": 0.06, "seq_mean_k3": 0.05, "seq_max_k2": 0.1, "seq_max_k3": 0.12}
    for by, high in limits.items():
        yield {"mode": "none", "level": "token", "reject": [{"by": by, "high": high}]}
    geometric = [{"by": "seq_mean_k1", "low": 0.9, "high": 1.15}]
    yield {"mode": "tis", "level": "sequence", "reject": [{"by": "seq_sum_k1", "low": 0.5, "high": 2.0}]}  # seq_is_rs
    yield {"mode": "tis", "level": "sequence", "reject": geometric}  # geo_rs_seq_tis
    yield {"mode": "tis", "level": "token", "reject": geometric}  # geo_rs_token_tis
    yield {"mode": "tis", "level": "token", "reject": [{"by": "seq_mean_k3", "high": 0.05}]}  # k3_rs_token_tis
    yield {"mode": "icepop", "level": "token", "reject": [*geometric, {"by": "token_k2", "high": 0.03}]}
    for mode, level in [("tis", "token"), ("tis", "sequence"), ("icepop", "token"), ("icepop", "sequence")]:
        yield {"mode": mode, "level": level, "reject": [], "normalize": True}
    yield {"mode": "tis", "level": "sequence", "reject": geometric, "normalize": True}


def main() -> None:
    generator = torch.Generator().manual_seed(7)
    batches = [
        make_batch(generator, 2, 4, 5, with_turns=True, outlier=False),
        make_batch(generator, 3, 3, 6, with_turns=False, outlier=True),
        make_batch(generator, 3, 5, 4, with_turns=True, outlier=False, failed=[3, 4, 11]),
    ]
    text = {"batches": [json.dumps(table(b)) for b in batches], "advantages": [], "weighed": [], "corrections": []}
    for number, c in enumerate(choices()):
        for index, b in enumerate(batches):
            if index == 0 or number % 4 == 1:
                text["advantages"].append(json.dumps({"batch": index, "keys": c, **advantages(b, c)}))
    for c in further_choices():
        text["advantages"].append(json.dumps({"batch": 0, "keys": c, **advantages(batches[0], c)}))
    for c, (index, b) in itertools.product(gpg_choices(), enumerate(batches)):
        text["advantages"].append(json.dumps({"batch": index, "keys": c, **advantages(b, c)}))
    weighed = next(c for c in choices() if c["estimator"] == "optimal_token_baseline")
    for index, b in enumerate(batches):  # with weights of a correction
        weights = torch.zeros_like(b["mask"])
        weights[b["mask"] > 0] = torch.tensor(correction(b, "tis", "token", 0.0, 2.0)["weight"], dtype=F64)
        text["weighed"].append(json.dumps({"batch": index, "keys": weighed, **advantages({**b, "correction": weights}, weighed)}))
    modes = [(m, level) for m in ("none", "tis", "icepop", "mask") for level in ("token", "sequence", "geometric")]
    for index, b in enumerate(batches):
        for (mode, level), (low, high) in itertools.product([*modes, ("seq_mask_tis", "token")], [(0.0, 2.0), (0.8, 1.3)]):
            case = {"batch": index, "mode": mode, "level": level, "low": low, "high": high}
            text["corrections"].append(json.dumps({**case, **correction(b, mode, level, low, high)}))
        for keys in rejections():
            case = {"batch": index, "low": 0.0, "high": 2.0, **keys}
            text["corrections"].append(json.dumps({**case, **correction(b, **{k: v for k, v in case.items() if k != "batch"})}))
        case = {"batch": index, "mode": "seq_mask_tis", "level": "token", "low": 0.8, "high": 1.3, "token_high": 1.2}
        text["corrections"].append(json.dumps({**case, **correction(b, *list(case.values())[1:])}))
    target = pathlib.Path(__file__).with_suffix(".json")
    parts = [f'"{name}": [\n' + ",\n".join(lines) + "\n]" for name, lines in text.items()]
    target.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"{target.name}: {len(text['advantages'])} advantages, {len(text['corrections'])} corrections")


if __name__ == "__main__":
    main()
