"""What Client.poll() returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .schema import Grant


@dataclass
class Granted:
    """Samples to make. In a new session the trainer grants samples of the old one again. The caller makes
    them, except those that it is still making.

    `withdrawn`: samples (group_id, sample_index) granted before that another worker makes now. Those that
    are not begun need not be made; of those that are, the first rollout counts."""

    groups: list[Grant]
    withdrawn: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class WeightsReady:
    """Verified and committed by the trainer: install, then Client.commit()."""

    version: int
    manifest: dict
    tensors: dict[str, np.ndarray]


@dataclass
class RolloutRejected:
    """The trainer refused this rollout for good. If it still needs the sample, it grants it again."""

    rollout_id: str
    reason: str
    detail: str


@dataclass
class Ended:
    reason: str


@dataclass
class Failed:
    reason: str
    detail: str


@dataclass
class Disconnected:
    """The session ended; the client reconnects by itself. The trainer has taken back all grants. The caller
    drops the samples that it has not begun. It may still send those that it finishes."""

    why: str
