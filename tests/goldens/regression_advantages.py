"""Rewards, advantages and corrections of a step in PyTorch fp64, sample by sample: the part of regression.py's step before the
updates. `c` is a recipe: a dict with the keys of regression.DEFAULTS.
"""

import dataclasses

import torch

F64 = torch.float64


def tensor(numbers):
    return torch.tensor(numbers, dtype=F64)


def total_of(c, s):
    return c["weights"]["exact_match"] * s.text[2] + c["weights"]["math_answer"] * s.text[3]


def shaped(c, s):
    """scale, clip, then DAPO's soft overlong penalty (Yu et al. 2025, eq. 13)."""
    total = total_of(c, s) * c["reward.scale"]
    if c["reward.clip"]:
        total = max(-c["reward.clip"], min(c["reward.clip"], total))
    buffer, longest, n = c["reward.overlong_buffer_tokens"], c["rollout.max_completion_tokens"], len(s.completion)
    if buffer and n > longest - buffer:
        total += c["reward.overlong_factor"] * ((longest - buffer) - n) / buffer if n <= longest else -1.0
    return total


@dataclasses.dataclass
class Token:
    sample: int
    branch: int
    position: int  # in the completion


class Batch:
    """The loss tokens of a step in order, and each sample's rewards."""

    def __init__(self, c, samples):
        self.samples, size = samples, c["rollout.group_size"]
        raw = [total_of(c, s) + sum(s.turn_rewards) for s in samples]
        groups = [raw[i : i + size] for i in range(0, len(raw), size)]
        dropped = [c["dynamic_sampling"] == "drop" and len(set(g)) == 1 for g in groups]
        self.trained = [not dropped[i // size] for i in range(len(samples))]
        self.tokens = []
        for i, s in enumerate(samples):
            if self.trained[i] and not (c["mask_truncated"] and s.truncated):
                for b, (_, begin, end) in enumerate(s.documents()):
                    self.tokens += [Token(i, b, p) for p in range(begin, end) if s.mask[p]]
        self.total = tensor([shaped(c, s) for s in samples])
        self.turn = tensor([c["reward.scale"] * sum(s.turn_rewards) for s in samples])
        for i, s in enumerate(samples):
            if not self.of_sample(i):  # nothing for a turn's reward to stand at: part of the total
                self.total[i] += self.turn[i]
                self.turn[i] = 0.0
        self.score = self.total + self.turn
        self.rollout = tensor([samples[t.sample].logprobs[t.position] for t in self.tokens])

    def of_sample(self, i):
        return [n for n, t in enumerate(self.tokens) if t.sample == i]

    def of_branch(self, i, b):
        return [n for n, t in enumerate(self.tokens) if (t.sample, t.branch) == (i, b)]


def kl_of(c, d):
    """Value of an estimate of d = log-prob - other log-prob (Schulman 2020), within verl's bound of k3 and OpenRLHF's of all."""
    name = c["kl_estimator"].split("_")[0]
    kl = {"k1": d, "abs": d.abs(), "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[name]
    if name == "k3" and c["k3_bound"]:
        x = (-d).clamp(-20, 20)
        kl = (torch.exp(x) - x - 1).clamp(-c["k3_bound"], c["k3_bound"])
    return kl.clamp(-c["kl_bound"], c["kl_bound"]) if c["kl_bound"] else kl


def std_of(x, unbiased):
    return x.std(correction=1 if unbiased else 0)


def equal(x):
    return len(set(x.tolist())) == 1


def group_advantages(c, scores, estimator, lengths):
    """group_mean: Shao et al. 2024; rloo: Ahmadian et al. 2024; pass_at_k: verl's grpo_passk; max_rl: prime-rl's; opo, gpg: verl's."""
    eps, unbiased, out = c["advantage.eps"], c["advantage.unbiased"], []
    size, factor = c["rollout.group_size"], len(scores) / max(1, int((scores != 0).sum())) if c["advantage.gpg_scale"] else 1.0
    for g, group in enumerate(scores.split(size)):
        length = tensor(lengths[g * size : (g + 1) * size])
        for i, r in enumerate(group):
            others = torch.cat([group[:i], group[i + 1 :]])
            if equal(group):
                out.append(tensor(0.0))
                continue
            divisor = {
                "group": lambda: std_of(group, unbiased) + eps,
                "batch": lambda: std_of(scores, unbiased) + eps,
                "leave_one_out": lambda: tensor(1.0) if equal(others) else std_of(others, unbiased) + eps,
                "none": lambda: 1.0,
            }[c["advantage.std"]]()
            best = i == int(group.argmax())
            advantage = {
                "group_mean": lambda: (r - group.mean()) / divisor,
                "rloo": lambda: (r - others.mean()) / divisor,
                "pass_at_k": lambda: (r - others.max()) / divisor if best else tensor(0.0),
                "max_rl": lambda: (r - group.mean()) / group.mean() if group.mean() > 0 else tensor(0.0),
                "opo": lambda: r - (length * group).sum() / length.sum(),
            }[estimator]()
            out.append(factor * advantage)
    return torch.stack(out)


def gdpo(c, batch, costs):
    """TRL's normalize_then_sum: every reward normalised in its group, their weighted sum over the batch."""
    parts = [(tensor([s.text[k] for s in batch.samples]), c["weights"][name])
             for k, name in ((2, "exact_match"), (3, "math_answer"))]  # fmt: skip
    parts.append((batch.turn - costs, 1.0))
    lengths = [1.0] * len(batch.samples)  # not read
    total = sum(weight * group_advantages(c, values, "group_mean", lengths) for values, weight in parts)
    return (total - total.mean()) / (std_of(total, c["advantage.unbiased"]) + c["advantage.eps"])


def token_rewards(c, batch, cost):
    """The total at the sample's last loss token, a turn's reward at the turn's last one; less the cost of each."""
    reward = -cost
    for i, s in enumerate(batch.samples):
        mine = batch.of_sample(i)
        if not mine:
            continue
        reward[mine[-1]] += batch.total[i]
        for value, end in zip(s.turn_rewards, s.turn_offsets[1:] + [len(s.completion)]):
            before = [n for n in mine if batch.tokens[n].position < end]
            reward[before[-1] if before else mine[0]] += c["reward.scale"] * value
    return reward


def by_token(c, batch, reward, value):
    """Returns-to-go (Williams 1992), or GAE (Schulman et al. 2015); time runs over the loss tokens alone, as in verl."""
    gamma, own = c["advantage.gamma"], torch.zeros_like(reward)
    for i in range(len(batch.samples)):
        carried = next_value = 0.0
        for n in reversed(batch.of_sample(i)):
            if c["advantage.estimator"] == "gae":
                delta = reward[n] + gamma * next_value - value[n]
                carried, next_value = delta + gamma * c["advantage.lambda"] * carried, value[n]
            else:
                carried = reward[n] + gamma * carried
            own[n] = carried
    return own


def token_baselines(c, batch, returns, path):
    """verl's tir_optimal_token_baseline, group by group and place by place."""
    old, squares, correction = path
    own = (1 - 2 * old.exp() + squares) * correction**2
    size, baseline = c["rollout.group_size"], torch.zeros_like(returns)
    for first in range(0, len(batch.samples), size):
        tokens = [m for m in map(batch.of_sample, range(first, first + size)) if m]
        longest = sorted(map(len, tokens))
        for place in range(longest[-2] if len(tokens) > 1 else 0):
            here = [m for m in tokens if len(m) > place]
            w = torch.stack([own[m[: place + 1]].sum() for m in here])
            g = torch.stack([returns[m[place]] for m in here])
            for m in here:
                baseline[m[place]] = (g * w).sum() / (w.sum() + 1e-8)
    return baseline


def by_sample(c, batch, kl):
    """One number a sample, less the discounted KL still to come with kl_in advantage (OpenRLHF)."""
    taken = c["kl_coef"] if c["kl_in"] == "reward" else 0.0
    costs = tensor([taken * float(kl[batch.of_sample(i)].sum()) for i in range(len(batch.samples))])
    estimator = c["advantage.estimator"]
    lengths = [float(len(batch.of_sample(i))) for i in range(len(batch.samples))]
    numbers = gdpo(c, batch, costs) if estimator == "gdpo" else group_advantages(c, batch.score - costs, estimator, lengths)
    own = torch.zeros_like(kl)
    for i in range(len(batch.samples)):
        mine = batch.of_sample(i)
        for k, n in enumerate(mine):
            own[n] = numbers[i]
            if c["kl_in"] == "advantage":
                own[n] -= c["kl_coef"] * sum(c["advantage.gamma"] ** (j - k) * kl[mine[j]] for j in range(k, len(mine)))
    return own


def whiten(c, batch, advantage):
    """verl's masked_whiten; over sequences: of their means."""
    x = advantage
    if c["advantage.whiten"] == "sequences":
        x = torch.stack([advantage[m].mean() for m in map(batch.of_sample, range(len(batch.samples))) if m])
    if c["advantage.whiten_eps_in"] == "std":  # AReaL
        return (advantage - x.mean()) / (std_of(x, c["advantage.unbiased"]) + c["advantage.whiten_eps"])
    return (advantage - x.mean()) * torch.rsqrt(std_of(x, c["advantage.unbiased"]) ** 2 + c["advantage.whiten_eps"])


def mean_kl(c, batch, kl):
    """What an adaptive coefficient sees: verl's controller the mean over samples of their mean (0 without a loss token)."""
    if c["kl_average"] == "tokens":
        return kl.mean()
    means = [kl[m].mean() if m else tensor(0.0) for m in map(batch.of_sample, range(len(batch.samples)))]
    return torch.stack(means).mean()


def advantages(c, batch, old, reference, value, path):
    """Advantage and return of each token, and the mean KL that was taken off."""
    kl = torch.zeros(len(batch.tokens), dtype=F64)
    if c["kl_coef"] and c["kl_in"] != "loss":
        kl = kl_of(c, old - (reference if c["kl_to"] == "reference" else batch.rollout))
    returns = None
    if c["advantage.estimator"] in ("reinforce", "gae", "optimal_token_baseline"):
        own = by_token(c, batch, token_rewards(c, batch, c["kl_coef"] * kl), value)
        returns = own + value if value is not None else None
        if c["advantage.estimator"] == "optimal_token_baseline":
            own = own - token_baselines(c, batch, own, path)
    else:
        own = by_sample(c, batch, kl)
    if c["advantage.whiten"] != "none":
        own = whiten(c, batch, own)
    return own, returns, float(mean_kl(c, batch, kl))


def is_kept(criterion, log_ratio):
    """Which tokens of a sample verl's rollout_rs keeps."""
    x = log_ratio.clamp(-20, 20)
    over, kind = criterion["by"].rsplit("_", 1)
    value = {"k1": -x, "k2": x**2 / 2, "k3": x.exp() - 1 - x}[kind]
    value = {"token": value, "seq_sum": value.sum(), "seq_mean": value.mean(), "seq_max": value.max()}[over].expand(len(x))
    if kind == "k1":
        return (value >= tensor(criterion["low"]).log()) & (value <= tensor(criterion["high"]).log())
    return value <= criterion["high"]


def corrections(c, batch, old):
    """Constant weight of each token, of ratio = exp(old - rollout), mode none: 1; what a dropped token's other terms have; the importance weights."""
    weight, factor = torch.ones_like(old), torch.ones_like(old)
    low, high = c["correction.low"], c["correction.high"]
    for i in range(len(batch.samples) if c["correction.mode"] != "none" else 0):
        mine = batch.of_sample(i)
        log_ratio = (old - batch.rollout)[mine]
        geometric = torch.exp(log_ratio.mean())
        for k, n in enumerate(mine):
            ratio = {"token": torch.exp(log_ratio[k]), "sequence": torch.exp(log_ratio.sum()), "geometric": geometric}[
                c["correction.level"]]  # fmt: skip
            inside = low <= ratio <= high
            weight[n] = {
                "tis": min(max(float(ratio), low), high),
                "icepop": ratio if inside else 0.0,
                "mask": 1.0 if inside else 0.0,
                "seq_mask_tis": ratio.clamp(max=c["correction.token_high"] or torch.inf) if low <= geometric <= high else 0.0,
            }[c["correction.mode"]]
    importance = weight.clone()  # what verl's figures are of: before they are normalised, and before a rejection
    if c["correction.normalize"]:
        sequences = torch.stack([weight[m].mean() for m in map(batch.of_sample, range(len(batch.samples))) if m])
        weight = weight / (weight.mean() if c["correction.level"] == "token" else sequences.mean())
    for i in range(len(batch.samples)):
        mine = batch.of_sample(i)
        kept = torch.ones(len(mine), dtype=torch.bool)
        for criterion in c["correction.reject"] if mine else []:
            kept &= is_kept(criterion, (old - batch.rollout)[mine])
        weight[mine] *= kept
        if c["correction.drop_rejected"] and mine:
            of_mean = len(mine) / max(1, int(kept.sum())) if c["loss_aggregation"] == "seq_mean_token_mean" else 1.0
            factor[mine] = kept.double() * of_mean
    return weight, factor, importance
