"""The small models and recorded rollouts that regression.py trains on: Hugging Face directories and JSONL files.

Weights are drawn wide, so that ratios leave their clip range after one optimizer step. They are written in fp32 and used in fp64
with norms in fp64, as a model in fp64 computes here; transformers would norm in fp32.
"""

import dataclasses
import json
import pathlib

import torch
import transformers
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

transformers.utils.logging.disable_progress_bar()
VOCAB, GROUP, MAX_COMPLETION = 32, 4, 12
OUT = pathlib.Path(__file__).parent / "regression"


def norm_in_own_dtype(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


modeling_qwen2.Qwen2RMSNorm.forward = norm_in_own_dtype
modeling_qwen3.Qwen3RMSNorm.forward = norm_in_own_dtype

SHAPE = dict(
    vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=None, eos_token_id=1, pad_token_id=None,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4},
)  # fmt: skip


# Six heads of 4 in three layers, and four words that no token has.
TEACHER = dict(vocab_size=VOCAB + 4, hidden_size=24, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
               layer_types=["full_attention"] * 3)  # fmt: skip


def draw(model, generator, std):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * std
            parameter.copy_(noise + 1 if "norm" in name else noise)
    return model


def save(model, name):
    folder = OUT / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def make_models():
    """policy and reference: Qwen3, the second near the first; critic: a Qwen2 of its own (biases) with a value head; teacher: a
    Qwen2 of another shape, whose vocabulary is padded."""
    generator = torch.Generator().manual_seed(11)
    policy = draw(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=4, **SHAPE)), generator, 0.35)
    save(policy, "policy")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.03)
    save(policy, "reference")
    config = transformers.Qwen2Config(num_labels=1, classifier_dropout=0.0, **SHAPE)
    save(draw(transformers.Qwen2ForTokenClassification(config), generator, 0.3), "critic")
    shape = SHAPE | TEACHER
    save(draw(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape)), generator, 0.3), "teacher")


def load(name):
    """One of the four in fp64, where numbers read from fp32 are exact."""
    kinds = {"critic": transformers.Qwen2ForTokenClassification, "teacher": transformers.Qwen2ForCausalLM}
    kind = kinds.get(name, transformers.Qwen3ForCausalLM)
    return kind.from_pretrained(OUT / name, dtype=torch.float32, attn_implementation="sdpa").double().eval()


@dataclasses.dataclass
class Sample:
    group: int
    prompt: list[int]
    completion: list[int]
    logprobs: list[float]  # under the policy that sampled, in fp32
    mask: list[int]
    temperature: float
    truncated: bool
    text: tuple[str, str, float, float]  # completion, answer; exact_match and math_answer by hand
    turn_offsets: list[int] = dataclasses.field(default_factory=list)
    turn_rewards: list[float] = dataclasses.field(default_factory=list)
    branches: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # begin, context_end

    def documents(self):
        """One (context ids, own begin, own end) a branch; the context holds the prompt."""
        begins = [0] + [begin for begin, _ in self.branches] + [len(self.completion)]
        contexts = [0] + [end for _, end in self.branches]

        def context(end):
            """The ids up to completion position `end`, along the branch that holds the token before it."""
            if end == 0:
                return list(self.prompt)
            owner = max(b for b in range(len(begins) - 1) if begins[b] < end)
            return context(contexts[owner]) + self.completion[begins[owner] : end]

        return [(context(c), begins[b], begins[b + 1]) for b, c in enumerate(contexts)]

    def line(self):
        fields = dict(
            group_id=self.group, prompt_ids=self.prompt, completion_ids=self.completion, logprobs=self.logprobs,
            loss_mask=self.mask, temperature=self.temperature, finish_reason="length" if self.truncated else "stop",
            turn_offsets=self.turn_offsets, turn_rewards=self.turn_rewards,
            branches=[dict(begin=b, context_end=c) for b, c in self.branches], reward=self.text[2] + self.text[3],
            text=dict(completion=self.text[0], answer=self.text[1], exact_match=self.text[2], math_answer=self.text[3]),
        )  # fmt: skip
        return json.dumps(fields)


# Completion, answer, and what exact_match and math_answer say of it.
RIGHT, WRONG = ("12", "12", 1.0, 1.0), ("eleven", "12", 0.0, 0.0)
TEXTS = [
    ("0.5", "1/2", 0.0, 1.0), RIGHT, WRONG, ("so it is \\boxed{\\frac{1}{2}}", "0.5", 0.0, 1.0),
    ("x = 3", "3", 0.0, 1.0), ("\\boxed{(1, 2)}", "(1,2)", 0.0, 1.0), ("\\boxed{(2, 1)}", "(1,2)", 0.0, 0.0),
    ("7", "7", 1.0, 1.0),
    RIGHT, RIGHT, RIGHT, RIGHT,
    WRONG, ("\\boxed{4}", "5", 0.0, 0.0), RIGHT, ("1,000", "1000", 0.0, 1.0),
]  # fmt: skip
LENGTHS = [5, 12, 1, 8, 9, 6, 12, 3, 7, 2, 4, 10, 11, 6, 3, 9]
ALL_MASKED, TRUNCATED = 3, 6
FAR_OFF = (12, 3, -1.9)  # sample, token, what its rollout log-prob is off by: a ratio of 6.7


def sample(policy, generator, prompt, length, temperature):
    """Tokens of the policy, log-probs of a policy that is a little off, here and there by much, and the true ones."""
    ids, logprobs, true = list(prompt), [], []
    for _ in range(length):
        with torch.no_grad():
            scores = (policy(torch.tensor([ids])).logits[0, -1] / temperature).log_softmax(-1)
        ids.append(int(torch.multinomial(scores.exp(), 1, generator=generator)))
        noise = torch.randn((), generator=generator, dtype=torch.float64)
        wild = torch.rand((), generator=generator) < 0.15
        true.append(float(scores[ids[-1]]))
        logprobs.append(min(float((scores[ids[-1]] + (1.2 if wild else 0.12) * noise).float()), -1e-3))
    return ids[len(prompt) :], [float(torch.tensor(x, dtype=torch.float32)) for x in logprobs], true


def make_samples(policy):
    """Four groups: plain answers with one sample all masked, turns at temperature 0.75, all right, plain."""
    generator, samples = torch.Generator().manual_seed(5), []
    for i, (length, text) in enumerate(zip(LENGTHS, TEXTS)):
        if i % GROUP == 0:
            prompt = torch.randint(2, VOCAB, ([7, 4, 11, 2][i // GROUP],), generator=generator).tolist()
        turns = i // GROUP == 1
        completion, logprobs, true = sample(policy, generator, prompt, length, 0.75 if turns else 1.0)
        if i == FAR_OFF[0]:
            logprobs[FAR_OFF[1]] = float(torch.tensor(true[FAR_OFF[1]] + FAR_OFF[2], dtype=torch.float32))
        mask = [int(not turns or t % 5 not in (2, 3)) for t in range(length)]  # the environment speaks in between
        mask = [0] * length if i == ALL_MASKED else mask
        offsets = [t for t in range(length) if t % 5 in (0, 2)] if turns else []
        samples.append(Sample(i // GROUP, prompt, completion, logprobs, mask, 0.75 if turns else 1.0, i == TRUNCATED,
                              text, offsets))  # fmt: skip
    return samples


def make_forked(policy):
    """Two groups with rewards of turns; two samples' conversations forked."""
    generator, samples = torch.Generator().manual_seed(6), []
    for i, length in enumerate([9, 5, 12, 7, 4, 11, 8, 6]):
        if i % GROUP == 0:
            prompt = torch.randint(2, VOCAB, (5 + i,), generator=generator).tolist()
        completion, logprobs, _ = sample(policy, generator, prompt, length, 1.0)
        s = Sample(i // GROUP, prompt, completion, logprobs, [int(t != 3) for t in range(length)], 1.0, False,
                   TEXTS[(5 * i) % len(TEXTS)], [0, 2, 4] if length > 4 else [0, 2])  # fmt: skip
        s.turn_rewards = [round(0.25 * ((i + t) % 3) - 0.2, 2) for t in range(len(s.turn_offsets))]
        s.branches = {2: [(5, 2), (8, 6)], 5: [(4, 0)]}.get(i, [])
        samples.append(s)
    samples[6].mask = [0] * len(samples[6].mask)
    return samples


def make_suite():
    """Writes models and rollouts; returns the samples by file."""
    make_models()
    policy = load("policy")
    files = {"plain.jsonl": make_samples(policy), "forked.jsonl": make_forked(policy)}
    for name, samples in files.items():
        (OUT / name).write_text("".join(s.line() + "\n" for s in samples))
    return files
