"""One training step in PyTorch fp64, sample by sample on whole sequences: what regression.py's goldens are.

Written from the papers' and systems' formulas, with torch's AdamW and clip_grad_norm_. Everything of a step lies in one process;
nothing is packed, sharded or accumulated. `c` is a recipe: a dict with the keys of regression.DEFAULTS.
"""

import math

import regression_advantages as adv
import regression_suite as suite
import torch

F64 = torch.float64


# --- Forward passes --------------------------------------------------------------------------------------------------------


def by_branch(batch, members, of_document):
    """of_document(ids, [places in ids of the loss tokens], sample) for each branch; in the order of the step's tokens."""
    parts = []
    for i in members:
        s = batch.samples[i]
        for b, (context, begin, end) in enumerate(s.documents()):
            at = [batch.tokens[n].position - begin + len(context) for n in batch.of_branch(i, b)]
            if at:
                parts.append(of_document(torch.tensor(context + s.completion[begin:end]), torch.tensor(at), s))
    return torch.cat(parts)


def log_probs(model, batch, members):
    """Log-prob, entropy and sum of squared probabilities of each loss token at the sample's temperature."""

    def of_document(ids, at, s):
        scores = (model(input_ids=ids[None]).logits[0, at - 1] / s.temperature).log_softmax(-1)
        of_target = scores.gather(-1, ids[at][:, None])[:, 0]
        return torch.stack([of_target, -(scores.exp() * scores).sum(-1), (2 * scores).exp().sum(-1)], -1)

    columns = by_branch(batch, members, of_document)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def distributions(model, batch, members, words):
    """Log-probs of the first `words` words at each loss token, normalised over these."""
    parts = []

    def of_document(ids, at, s):
        scores = model(input_ids=ids[None]).logits[0, at - 1, :words] / s.temperature
        parts.append(scores.log_softmax(-1))
        return torch.zeros((0, 2), dtype=F64)

    by_branch(batch, members, of_document)
    return torch.cat(parts)


def values_of(model, batch, members):
    def of_document(ids, at, s):
        return model(input_ids=ids[None]).logits[0, at - 1, :1].expand(-1, 2)  # of the state that the token is sampled in

    return by_branch(batch, members, of_document)[:, 0]


# --- Policy loss -----------------------------------------------------------------------------------------------------------


def ratios(c, lp, old, advantage):
    """Of one branch. Of whole sequences it is one number with the gradient of their mean, as the papers have it."""
    x = lp - old
    if c["loss"] == "gmpo":
        sign = advantage.sign()
        bounded = sign * torch.minimum(sign * x, sign * x.clamp(-c["clip_low"], c["clip_high"]))
        return torch.exp(bounded.mean()).expand(len(x))
    return torch.exp(x.mean()).expand(len(x)) if c["importance_level"] == "sequence" else torch.exp(x)


def bounds(c):
    absolute = c["loss"] == "cispo" and c["cispo.bounds"] == "absolute"
    return (c["clip_low"], c["clip_high"]) if absolute else (1 - c["clip_low"], 1 + c["clip_high"])


def covariance_choice(c, old, a):
    """The tokens of a mini-batch that clip_cov and kl_cov treat apart (Cui et al. 2025), by the old policy's log-probs."""
    cov = (a - a.mean()) * (old - old.mean())
    if c["loss"] == "clip_cov":
        assert c["clip_cov.ratio"] == 1.0  # else they are drawn
        return (cov > c["clip_cov.lb"]) & (cov < c["clip_cov.ub"])
    chosen = torch.zeros_like(cov, dtype=torch.bool)
    chosen[torch.topk(cov, max(1, int(c["kl_cov.ratio"] * len(cov)))).indices] = True
    return chosen


def objective(c, lp, old, r, a, chosen):
    low, high = bounds(c)
    if c["loss"] == "clip_cov":
        return torch.where(chosen, 0.0, -torch.minimum(r * a, r.clamp(low, high) * a))
    if c["loss"] == "kl_cov":
        return torch.where(chosen, -a * r + c["kl_cov.kl_coef"] * (lp - old).abs(), -a * r)
    if c["loss"] == "dppo_kl":
        p, q = old.exp(), lp.detach().exp()
        kl = p * (old - lp.detach()) + (1 - p) * torch.log((1 - p + 1e-8) / (1 - q + 1e-8))
        masked = torch.where(a > 0, (kl > c["clip_high"]) & (q > p), (kl > c["clip_low"]) & (q < p))
        return torch.where(masked, 0.0, -a * r.detach() * lp)
    if c["loss"] == "ppo_clip":
        free = r.clamp(max=c["ppo_clip.delta"]) if c["ppo_clip.delta"] else r
        loss = -torch.minimum(free * a, r.clamp(low, high) * a)
        return torch.where(a < 0, torch.minimum(loss, -a * c["ppo_clip.dual_clip"]), loss) if c["ppo_clip.dual_clip"] else loss
    if c["loss"] == "cispo":
        return -r.detach().clamp(low, high) * a * lp
    if c["loss"] == "sapo":
        tau = torch.full_like(a, c["sapo.tau_negative"]).masked_fill(a > 0, c["sapo.tau_positive"])
        return -a * 4 / (tau * (1 + torch.exp(-tau * (r - 1))))
    if c["loss"] == "dppo_tv":
        moved = (lp.exp() - old.exp()).detach()
        masked = ((a > 0) & (moved > c["clip_high"])) | ((a <= 0) & (moved < -c["clip_low"]))
        weight = r.detach().clamp(max=c["dppo.ratio_bound"] or torch.inf)
        return torch.where(masked, 0.0, -a * weight * lp)
    if c["loss"] == "vespo":  # w^k exp(lambda (1 - w)), w the product of the branch's ratios, held fixed
        log_w = (lp - old).detach().sum().clamp(math.log(1e-8), 20)
        k = torch.full_like(a, c["vespo.k_negative"]).masked_fill(a >= 0, c["vespo.k_positive"])
        decay = torch.full_like(a, c["vespo.lambda_negative"]).masked_fill(a >= 0, c["vespo.lambda_positive"])
        return -log_w.exp() ** k * torch.exp(decay * (1 - log_w.exp())) * a * lp
    if c["loss"] == "dro":  # verl's
        return -(lp * a - 0.5 * c["dro.beta"] * (lp - old) ** 2)
    return -a * r if c["loss"] == "gmpo" else -a * lp  # Williams 1992


def divergence(c, p, q):
    """Of each row's policy from its teacher, log-probs of all words or of some and the rest (Agarwal et al. 2024)."""
    if c["distillation.over"] == "top_k":
        top = q.topk(c["distillation.top_k"], -1).indices

        def classes(x):
            own = x.gather(-1, top)
            return torch.cat([own, (1 - own.exp().sum(-1, keepdim=True)).log()], -1)

        p, q = classes(p), classes(q)

    def kl(a, b):
        return (a.exp() * (a - b)).sum(-1)

    if c["distillation.divergence"] == "reverse_kl":
        return kl(p, q)
    if c["distillation.divergence"] == "forward_kl":
        return kl(q, p)
    beta = c["distillation.mixture"]
    m = (beta * q.exp() + (1 - beta) * p.exp()).log()
    return beta * kl(q, m) + (1 - beta) * kl(p, m)


def kl_term(c, lp, other, r):
    d = lp - other
    value, name = adv.kl_of(c, d), c["kl_estimator"]
    if name.endswith("straight"):
        return value.detach() + d**2 / 2 - (d**2 / 2).detach()
    if name == "k3_score":
        return value * torch.exp(lp - lp.detach())
    return value * r if name == "k3_unbiased" else value


def weight_of(c, batch, members, i):
    """What each loss token of sample i weighs in its optimizer step."""
    counts = {j: len(batch.of_sample(j)) for j in members if batch.trained[j]}
    n = counts.get(i, 0)
    if n == 0:
        return 0.0
    tokens, sequences = sum(counts.values()), len(counts)
    return {
        "token_mean": 1 / tokens,
        "micro_batch_token_mean": 1 / tokens,  # of the one micro-batch that everything is
        "token_sum": 1.0,
        "seq_mean_token_mean": 1 / (sequences * n),
        "seq_mean_token_sum": 1 / sequences,
        "constant": 1 / (sequences * (c["loss_divisor"] or c["rollout.max_completion_tokens"])),
    }[c["loss_aggregation"]]


def branch_loss(c, batch, i, mine, lp, columns, sums):
    """Policy and KL terms of the tokens `mine`, a branch of sample i; adds to the sums of the metrics."""
    old, a, rollout = columns["old"][mine], columns["advantage"][mine], batch.rollout[mine]
    r = ratios(c, lp, old, a)
    loss = columns["correction"][mine] * objective(c, lp, old, r, a, columns["chosen"][mine])
    kept = columns["kept"][mine]
    if c["correction.opsm_delta"]:
        masked = (a < 0) & ((rollout - lp.detach()).mean() > c["correction.opsm_delta"])
        loss = torch.where(masked, 0.0, loss)
        sums["opsm"] += int(masked.sum())
    kl = torch.zeros(len(mine), dtype=F64)
    if c["kl_coef"] and c["kl_in"] == "loss":
        kl = kl_term(c, lp, rollout if c["kl_to"] == "rollout" else columns["reference"][mine], r)
    low, high = bounds(c)
    sums["kl"] += float(kl.sum())
    sums["clip_low"] += int(((a < 0) & (r < low)).sum())
    sums["clip_high"] += int(((a > 0) & (r > high)).sum())
    sums["old_kl"] += float((old - lp).sum())
    log_rho = (old if c["old_logprobs"] == "recompute" else lp.detach()) - rollout  # trainer - sampler
    for name, of in {"mismatch": -log_rho, "error": log_rho.abs().exp(), "k3": log_rho.exp() - 1 - log_rho,
                     "rho": log_rho.exp(), "squares": (2 * log_rho).exp()}.items():  # fmt: skip
        sums[name] += float(of.sum())
    return (kept * loss).sum(), (kept * kl).sum()


def entropy_bonus(c, state, entropy, weight):
    """Of the tokens' mean, or with their weights in the loss as in verl. Acts while the entropy seen last is not above its target, and moves towards it (Skywork-OR1, He et al. 2025)."""
    acts = not c["entropy_target"] or state["entropy"] <= c["entropy_target"]
    summed = (weight * entropy).sum() if c["entropy_aggregation"] == "loss" else ((weight != 0) * entropy).mean()
    bonus = state["entropy_coef"] * summed if acts else 0.0
    state["entropy"] = float(entropy.mean())
    if c["entropy_target"]:
        step = c["entropy_step"] if state["entropy"] <= c["entropy_target"] else -c["entropy_step"]
        state["entropy_coef"] = max(0.0, state["entropy_coef"] + step)
    return bonus


def step(c, state, model, optimizer, loss, max_norm):
    """Backward, clip, AdamW; returns the norm before the clip."""
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    total = c["train.steps"] * c["num_iterations"] * c["train.num_mini_batches"]
    decay = 1 - state["updates"] / total if c["optimizer.lr_schedule"] == "linear" else 1.0
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * decay
    optimizer.step()
    return float(norm)


def policy_update(c, state, batch, members, columns):
    """Loss and metrics of one optimizer step; columns: of all loss tokens, by name."""
    chosen = [n for i in members for n in batch.of_sample(i)]
    lp, entropy, _ = log_probs(state["policy"], batch, members)
    sums = dict.fromkeys(["kl", "clip_low", "clip_high", "opsm", "old_kl", "mismatch", "error", "k3", "rho", "squares"], 0)
    if c["loss"] in ("clip_cov", "kl_cov"):
        columns["chosen"][chosen] = covariance_choice(c, columns["old"][chosen], columns["advantage"][chosen])
    policy_loss = kl_loss = torch.zeros((), dtype=F64)
    for i in members:
        for b in range(len(batch.samples[i].documents())):
            mine = batch.of_branch(i, b)
            if mine:
                here = [chosen.index(n) for n in mine]
                of_policy, of_kl = branch_loss(c, batch, i, mine, lp[here], columns, sums)
                policy_loss = policy_loss + weight_of(c, batch, members, i) * of_policy
                kl_loss = kl_loss + weight_of(c, batch, members, i) * of_kl
    weights = adv.tensor([weight_of(c, batch, members, batch.tokens[n].sample) * columns["kept"][n] for n in chosen])
    distilled = torch.zeros((), dtype=F64)
    if c["distillation"]:
        sums["teacher_kl"] = float((lp - columns["teacher"][chosen]).sum())
    if c["distillation"] and c["distillation.over"] != "sampled_token":
        p = distributions(state["policy"], batch, members, suite.VOCAB)
        apart = divergence(c, p, columns["teacher_words"][chosen])
        sums["divergence"] = float(apart.sum())
        distilled = c["distillation.coef"] * (weights * apart).sum()
    loss = policy_loss + state["kl_coef"] * kl_loss + distilled - entropy_bonus(c, state, entropy, weights)
    norm = step(c, state, state["policy"], state["optimizer"], loss, c["optimizer.max_grad_norm"])
    state["updates"] += 1
    return sums | dict(loss=float(loss), policy_loss=float(policy_loss), tokens=len(chosen), entropy=float(entropy.sum()),
                       grad_norm=norm)  # fmt: skip


def critic_update(c, state, batch, members, columns):
    """PPO2's clipped value loss (Schulman et al. 2017)."""
    chosen = [n for i in members for n in batch.of_sample(i)]
    v, old, target = values_of(state["critic"], batch, members), columns["value"][chosen], columns["returns"][chosen]
    error, clip = (v - target) ** 2, c["critic.value_clip"]
    if clip:
        error = torch.maximum(error, (torch.minimum(torch.maximum(v, old - clip), old + clip) - target) ** 2)
    loss = 0.5 * error.mean()
    norm = step(c, state, state["critic"], state["critic_optimizer"], loss, c["critic.max_grad_norm"])
    return dict(loss=float(loss), grad_norm=norm)


# --- The step --------------------------------------------------------------------------------------------------------------


def adamw(c, model, rate):
    """Weight decay on matrices alone, as transformers' Trainer, or on all parameters, as verl."""
    every = c["optimizer.weight_decay_of"] == "all"
    matrices = [p for p in model.parameters() if every or p.dim() > 1]
    rest = [p for p in model.parameters() if not every and p.dim() <= 1]
    groups = [dict(params=matrices, weight_decay=c["optimizer.weight_decay"], peak=rate),
              dict(params=rest, weight_decay=0.0, peak=rate)]  # fmt: skip
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=c["optimizer.eps"])


def prepare(c, batch, state, load):
    """Old, reference and value of every loss token, and what follows of them; the KL that was taken off."""
    everyone = range(len(batch.samples))
    columns = dict(old=batch.rollout, reference=None, value=None)
    squares = None
    if c["old_logprobs"] == "recompute":
        columns["old"], _, squares = log_probs(state["policy"], batch, everyone)
    if c["kl_coef"] and c["kl_to"] == "reference":
        columns["reference"] = log_probs(load("reference"), batch, everyone)[0]
    if "critic" in state:
        columns["value"] = values_of(state["critic"], batch, everyone)
    columns["chosen"] = torch.zeros(len(batch.tokens), dtype=torch.bool)
    if c["distillation"]:
        teacher = load("teacher")
        columns["teacher"] = log_probs(teacher, batch, everyone)[0]
        columns["teacher_words"] = distributions(teacher, batch, everyone, suite.VOCAB)
    correction, kept, importance = adv.corrections(c, batch, columns["old"])
    path = (columns["old"], squares, correction)
    own, returns, kl = adv.advantages(c, batch, columns["old"], columns["reference"], columns["value"], path)
    if c["distillation"] and c["distillation.over"] == "sampled_token":  # verl's k1 as an advantage
        own = own - c["distillation.coef"] * (columns["old"] - columns["teacher"])
    return columns | dict(advantage=own, returns=returns, correction=correction, kept=kept, importance=importance), kl


def adapted_kl_coef(c, coef, kl, samples):
    """Ziegler et al. 2019, section 2.2."""
    if not c["kl_target"]:
        return coef
    return coef * (1 + max(-0.2, min(0.2, kl / c["kl_target"] - 1)) * min(1.0, samples / c["kl_horizon"]))


def train(c, samples, load):
    """One step of recipe c on the samples. load(name) gives a model of its own."""
    batch = adv.Batch(c, samples)
    state = dict(policy=load("policy"), updates=0, entropy=0.0, entropy_coef=c["entropy_coef"], kl_coef=c["kl_coef"])
    state["optimizer"] = adamw(c, state["policy"], c["optimizer.learning_rate"])
    if c["advantage.estimator"] == "gae":
        state["critic"] = load("critic")
        state["critic_optimizer"] = adamw(c, state["critic"], c["critic.learning_rate"])
    with torch.no_grad():
        columns, kl = prepare(c, batch, state, load)
    parts = c["train.num_mini_batches"]
    assert len(samples) % parts == 0
    size, policy, critic = len(samples) // parts, [], []
    apart = c["critic.num_iterations"] or c["critic.num_mini_batches"]  # the critic's own passes, all before the policy's
    of_critic = c["critic.num_mini_batches"] or parts
    for _ in range(c["critic.num_iterations"] or c["num_iterations"] if apart else 0):
        for part in range(of_critic):
            assert len(samples) % of_critic == 0
            width = len(samples) // of_critic
            critic.append(critic_update(c, state, batch, range(part * width, (part + 1) * width), columns))
    for _ in range(c["num_iterations"]):
        for part in range(parts):
            members = range(part * size, (part + 1) * size)
            if "critic" in state and not apart:
                critic.append(critic_update(c, state, batch, members, columns))
            policy.append(policy_update(c, state, batch, members, columns))
    if c["kl_in"] == "loss":
        kl = sum(u["kl"] for u in policy) / sum(u["tokens"] for u in policy)
    state["kl_coef"] = adapted_kl_coef(c, state["kl_coef"], kl, len(samples))
    return dict(batch=batch, columns=columns, policy=policy, critic=critic, state=state, kl=kl)


def metrics_of(c, done):
    """What a step logs, under the names of the systems that log it."""
    batch, policy, critic = done["batch"], done["policy"], done["critic"]
    own, groups = done["columns"]["advantage"], batch.score.split(c["rollout.group_size"])

    def mean(updates, key):
        return sum(u[key] for u in updates) / len(updates)

    def per_token(key, updates=policy):
        return sum(u[key] for u in updates) / sum(u["tokens"] for u in updates)

    def mismatch(key):
        """Over the first pass, so of the whole step."""
        return per_token(key, policy[: c["train.num_mini_batches"]])

    metrics = {
        "reward": float(batch.score.mean()),
        "reward_std": math.fsum(float(g.std()) for g in groups) / len(groups),
        "frac_reward_zero_std": sum(len(set(g.tolist())) == 1 for g in groups) / len(groups),
        "loss": mean(policy, "loss"), "policy_loss": mean(policy, "policy_loss"), "grad_norm": mean(policy, "grad_norm"),
        "kl": per_token("kl"), "entropy": per_token("entropy"), "actor/ppo_kl": per_token("old_kl"),
        "clip_ratio/low_mean": per_token("clip_low"), "clip_ratio/high_mean": per_token("clip_high"),
        "critic/advantages/mean": float(own.mean()), "critic/advantages/min": float(own.min()),
        "critic/advantages/max": float(own.max()),
        "rollout_corr/kl": mismatch("mismatch"), "token_mult_prob_error": mismatch("error"),
        "rollout_corr/k3_kl": mismatch("k3"), "rollout_corr/chi2_token": mismatch("squares") - 1,
        "rollout_corr/rollout_is_mean": mismatch("rho"),
        "rollout_corr/rollout_is_eff_sample_size": mismatch("rho") ** 2 / mismatch("squares"),
    }  # fmt: skip
    if c["distillation"]:
        metrics["distillation/kl"] = mismatch("teacher_kl")
    if c["distillation"] and c["distillation.over"] != "sampled_token":
        metrics["distillation/divergence"] = mismatch("divergence")
    if c["correction.mode"] in ("tis", "icepop", "seq_mask_tis"):  # verl: of the weights that are applied
        w = done["columns"]["importance"]
        metrics["rollout_corr/rollout_is_mean"] = float(w.mean())
        metrics["rollout_corr/rollout_is_eff_sample_size"] = float(w.mean() ** 2 / (w**2).mean())
    if c["correction.mode"] == "mask":  # no weights are applied
        del metrics["rollout_corr/rollout_is_mean"], metrics["rollout_corr/rollout_is_eff_sample_size"]
    if c["correction.mode"] == "none" and c["correction.reject"]:
        del metrics["rollout_corr/rollout_is_mean"], metrics["rollout_corr/rollout_is_eff_sample_size"]
    if c["correction.mode"] != "none" or c["correction.reject"]:
        metrics["rollout_corr/rollout_rs_masked_fraction"] = float((done["columns"]["correction"] == 0).double().mean())
    if c["loss"] in ("clip_cov", "kl_cov"):
        metrics["clip_ratio/covariance"] = float(done["columns"]["chosen"].double().mean())
    if c["correction.opsm_delta"]:
        metrics["opsm_clipfrac"] = per_token("opsm")
    if c["kl_coef"]:
        metrics["actor/kl_coef"] = c["kl_coef"]  # that the step used
    if c["kl_coef"] and c["kl_in"] != "loss":
        metrics["critic/kl"] = done["kl"]
    if c["entropy_coef"] or c["entropy_target"]:
        metrics["entropy_coef"] = done["state"]["entropy_coef"]
    if critic:
        metrics |= {"critic/vf_loss": mean(critic, "loss"), "critic/grad_norm": mean(critic, "grad_norm")}
    return metrics
