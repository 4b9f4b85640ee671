"""Rollouts and grants, and their wire form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from .images import ConversationImage, buffers as image_buffers, check_places

MAX_LOGPROB = 1e-3  # rounding; anything above is an error
MIN_LOGPROB = -1e4
MAX_TURNS = 16 * 1024
MAX_BRANCHES = 1024
MAX_EXPERT_ID = 32767


@dataclass
class Grant:
    """Samples the trainer wants of the prompt at `group_id`."""

    group_id: int
    group_size: int
    min_version: int
    attempt: int
    sample_indices: list[int]


@dataclass
class RoutedExperts:
    """Experts that each token used in the layers with experts of the model that sampled it."""

    layers: list[int]  # indices of these layers in the model, strictly rising
    experts: np.ndarray  # [tokens - 1, layers, experts a token]: the last token has no row

    @classmethod
    def from_table(cls, table: np.ndarray, layers: list[int], num_layers: int) -> "RoutedExperts":
        """From a server's table [tokens - 1, n, K], whose n layers are `layers` or all `num_layers` of the
        model. Rows of layers without experts are dropped."""
        if table.ndim != 3 or table.shape[1] not in (len(layers), num_layers):
            raise ValueError(f"a table of shape {list(table.shape)}, expected [tokens - 1, {len(layers)} or "
                             f"{num_layers} layers, experts a token]")
        return cls(list(layers), table if table.shape[1] == len(layers) else table[:, layers])

    def validate(self, tokens: int) -> None:
        """Raises ValueError unless this fits a rollout of so many tokens."""
        shape = list(self.experts.shape)
        if len(shape) != 3 or shape[:2] != [tokens - 1, len(self.layers)] or shape[2] < 1:
            raise ValueError(f"routed_experts has shape {shape}, expected [{tokens - 1}, {len(self.layers)}, K]: "
                             f"a row for each of {tokens} tokens but the last")
        if not self.layers or self.layers != sorted(set(self.layers)) or self.layers[0] < 0:
            raise ValueError(f"routed_experts: layers {self.layers} must rise strictly from 0 or above")
        if not np.issubdtype(self.experts.dtype, np.integer):
            raise ValueError(f"routed_experts holds {self.experts.dtype}, expected whole numbers")
        if self.experts.size and not (self.experts.min() >= 0 and self.experts.max() <= MAX_EXPERT_ID):
            raise ValueError(f"routed_experts: an id is outside [0, {MAX_EXPERT_ID}]")
        ordered = np.sort(self.experts, axis=2)
        if (ordered[:, :, 1:] == ordered[:, :, :-1]).any():
            raise ValueError("routed_experts: an expert is there twice for one token and layer")

    def buffers(self) -> list[tuple[str, str, np.ndarray]]:
        small = not self.experts.size or self.experts.max() <= 255
        return [("routed_layers", "I32", np.asarray(self.layers, "<i4")),
                ("routed_experts", "U8" if small else "I16", self.experts.astype("u1" if small else "<i2"))]


@dataclass
class Rollout:
    """One sampled completion. Lengths are in tokens; `logprobs` are those of the sampled distribution."""

    rollout_id: str
    group_id: int
    group_size: int
    sample_index: int
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    versions: list[tuple[int, int, int]]  # (version, begin, end) over the completion, no gaps
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    finish_reason: str = "stop"  # stop, length, aborted, error
    failure: str = ""  # why a sample has failed, for people
    rewards: dict[str, float] = field(default_factory=dict)
    loss_mask: list[int] | None = None  # None: all ones
    turn_offsets: list[int] | None = None  # starts of turns, strictly rising
    turn_rewards: list[float] | None = None  # one per turn
    advantages: list[float] | None = None  # one per token, for a trainer whose estimator is `given`
    # Forks of the conversation as (begin, context_end): completion tokens from begin on continue the
    # token before position context_end (0: the prompt) and what that one continues.
    branches: list[tuple[int, int]] | None = None
    routed_experts: RoutedExperts | None = None  # for a trainer that replays routes
    # Of each completion token the ids that top_p and top_k left to draw it from, rising; [] where none were
    # recorded. For a trainer whose log-probs are over them.
    kept_sets: list[list[int]] | None = None
    # In order and disjoint. The client sends their pixels where the trainer does not have them.
    images: list[ConversationImage] | None = None
    prompt_id: str = ""
    attempt: int = 0
    trainer_term: int = -1  # -1: filled in with that of the installed weights

    def validate(self) -> None:
        """Raises ValueError naming the field. The trainer checks again."""
        length = len(self.completion_ids)
        if not self.rollout_id:
            raise ValueError("rollout_id is empty")
        for text in (self.rollout_id, self.prompt_id, *self.rewards):
            text.encode()  # UnicodeEncodeError, a ValueError, for what is not UTF-8
        if not 0 <= self.sample_index < self.group_size:
            raise ValueError(f"sample_index {self.sample_index} is outside [0, {self.group_size})")
        if not self.prompt_ids:
            raise ValueError("prompt_ids has 0 tokens, expected at least 1")
        if length == 0 and self.finish_reason in ("stop", "length"):
            raise ValueError(f"completion_ids has 0 tokens with finish_reason {self.finish_reason}")
        for name in ("logprobs", "loss_mask", "advantages"):
            values = getattr(self, name)
            if values is not None and len(values) != length:
                raise ValueError(f"{name} has {len(values)} entries, completion_ids {length}")
        for value in self.logprobs:
            if not MIN_LOGPROB <= value <= MAX_LOGPROB:
                raise ValueError(f"logprobs holds {value}, expected {MIN_LOGPROB} to {MAX_LOGPROB}")
        for value in self.advantages or []:
            if not math.isfinite(value):
                raise ValueError(f"advantages holds {value}, expected finite values")
        covered = 0
        for version, begin, end in self.versions:
            if version < 0 or begin != covered or end <= begin:
                raise ValueError(f"versions: span [{begin}, {end}) must begin at {covered}")
            covered = end
        if covered != length:
            raise ValueError(f"versions cover {covered} tokens, completion_ids has {length}")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature = {self.temperature}, expected > 0")
        self._validate_turns()
        self._validate_branches()
        check_places(self.images or [], self.loss_mask, length, self.branches or [])
        if self.routed_experts:
            self.routed_experts.validate(len(self.prompt_ids) + length)
        self._validate_kept_sets()

    def _validate_kept_sets(self) -> None:
        sets = self.kept_sets or []
        if sets and len(sets) != len(self.completion_ids):
            raise ValueError(f"kept_sets has {len(sets)} entries, completion_ids {len(self.completion_ids)}")
        for token, (kept, drawn) in enumerate(zip(sets, self.completion_ids)):
            if kept and drawn not in kept:
                raise ValueError(f"kept_sets[{token}] lacks the token itself, {drawn}")
            if any(a >= b for a, b in zip(kept, kept[1:])):
                raise ValueError(f"kept_sets[{token}] must rise strictly")

    def _validate_turns(self) -> None:
        offsets, rewards = self.turn_offsets or [], self.turn_rewards or []
        if len(offsets) > MAX_TURNS:
            raise ValueError(f"turn_offsets has {len(offsets)} entries, limit {MAX_TURNS}")
        previous = -1
        for offset in offsets:
            if not previous < offset < len(self.completion_ids):
                raise ValueError(f"turn_offsets: {offset} must be above {previous} and below "
                                 f"{len(self.completion_ids)}")
            previous = offset
        if rewards and len(rewards) != len(offsets):
            raise ValueError(f"turn_rewards has {len(rewards)} entries, turn_offsets {len(offsets)}")
        for value in rewards:
            if not math.isfinite(value):
                raise ValueError(f"turn_rewards holds {value}, expected finite values")

    def _validate_branches(self) -> None:
        branches = self.branches or []
        if len(branches) > MAX_BRANCHES:
            raise ValueError(f"branches has {len(branches)} entries, limit {MAX_BRANCHES}")
        previous = 0
        for begin, context_end in branches:
            if not previous < begin < len(self.completion_ids):
                raise ValueError(f"branches: begin {begin} must be above {previous} and below "
                                 f"{len(self.completion_ids)}")
            if not 0 <= context_end <= begin:
                raise ValueError(f"branches: context_end {context_end} is outside [0, begin {begin}]")
            previous = begin

    def body(self) -> dict:
        return {
            "rollout_id": self.rollout_id, "attempt": self.attempt, "group_id": self.group_id,
            "group_size": self.group_size, "sample_index": self.sample_index,
            "prompt_id": self.prompt_id, "temperature": float(self.temperature),
            "top_p": float(self.top_p), "top_k": self.top_k, "trainer_term": self.trainer_term,
            "finish_reason": self.finish_reason, "failure": self.failure,
            "rewards": [[name, float(value)] for name, value in self.rewards.items()],
        }

    def buffers(self) -> list[tuple[str, str, np.ndarray]]:
        out = [
            ("prompt_ids", "I32", np.asarray(self.prompt_ids, "<i4")),
            ("completion_ids", "I32", np.asarray(self.completion_ids, "<i4")),
            ("logprobs", "F32", np.asarray(self.logprobs, "<f4")),
            ("versions", "I64", np.asarray(self.versions, "<i8").reshape(-1, 3)),
        ]
        if self.loss_mask:
            out.append(("loss_mask", "U8", np.asarray(self.loss_mask, "u1")))
        if self.turn_offsets:
            out.append(("turn_offsets", "I32", np.asarray(self.turn_offsets, "<i4")))
        if self.turn_rewards:
            out.append(("turn_rewards", "F64", np.asarray(self.turn_rewards, "<f8")))
        if self.advantages:
            out.append(("advantages", "F32", np.asarray(self.advantages, "<f4")))
        if self.branches:
            out.append(("branches", "I64", np.asarray(self.branches, "<i8").reshape(-1, 2)))
        if self.images:
            out += image_buffers(self.images)
        if self.routed_experts and self.routed_experts.experts.size:
            out += self.routed_experts.buffers()
        if self.kept_sets:
            out.append(("kept_counts", "I32", np.asarray([len(kept) for kept in self.kept_sets], "<i4")))
            out.append(("kept_ids", "I32", np.asarray([i for kept in self.kept_sets for i in kept], "<i4")))
        return out
