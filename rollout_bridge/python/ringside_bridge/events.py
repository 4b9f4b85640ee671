"""What Client.poll() returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .schema import GrantedGroup


@dataclass
class Granted:
    groups: list[GrantedGroup]


@dataclass
class WeightsReady:
    """Verified and committed by the trainer: install, then Client.commit()."""

    version: int
    manifest: dict
    tensors: dict[str, np.ndarray]


@dataclass
class RolloutRejected:
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
    why: str
