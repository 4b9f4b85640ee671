"""Rollout worker's side of Ringside's bridge. See PROTOCOL.md for what goes over the wire."""

from .client import Client
from .events import Disconnected, Ended, Failed, Granted, RolloutRejected, WeightsReady
from .images import ConversationImage, image_hash
from .schema import Grant, Rollout, RoutedExperts
from .sockets import CurveKeys
from .weights import root_hash_of

__all__ = ["Client", "ConversationImage", "CurveKeys", "Disconnected", "Ended", "Failed", "Grant", "Granted",
           "Rollout", "RolloutRejected", "RoutedExperts", "WeightsReady", "image_hash", "root_hash_of"]
