"""The client as its caller sees it: takes events, sends rollouts."""

from __future__ import annotations

import queue
import threading
import time

import numpy as np

from .events import Granted, WeightsReady
from .schema import Rollout
from .session import Pending, SessionLoop
from .sockets import CurveKeys
from .weights import root_hash_of


class Client(SessionLoop):
    """A worker's session with the trainer. Reconnects by itself; rollouts are kept until acknowledged.
    Without `curve` the connection is plain: for a trainer on this machine. `settings`: what this worker
    samples with, by the names in PROTOCOL.md, for the trainer to compare with its own; those that are
    left out are not compared."""

    def __init__(self, address: str, worker_id: str, capacity_samples: int = 8,
                 max_pending: int = 1024, chunk_bytes: int = 4 << 20,
                 curve: CurveKeys | None = None, settings: dict | None = None):
        super().__init__(address, worker_id, capacity_samples, max_pending, chunk_bytes, curve, settings)
        self._thread = threading.Thread(target=self._run, name="ringside-bridge", daemon=True)
        self._thread.start()

    # All of it is thread-safe.

    @property
    def settings(self) -> dict:
        """What the trainer expects of its workers, by the names in PROTOCOL.md; only what it stated. Empty
        before the first WELCOME, so look after the first event."""
        return {name: value for name, value in (self._welcome.get("settings") or {}).items()
                if value is not None}

    def poll(self, timeout: float | None = None):
        """The next event, or None after `timeout` seconds. Raises what ended the thread."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._progress = time.monotonic()
            left = None if deadline is None else max(0.0, deadline - self._progress)
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                return None
            if isinstance(event, BaseException):
                raise event
            if not isinstance(event, Granted) or self._without_sent(event).groups:
                return event

    def send(self, rollout: Rollout, timeout: float = 60.0) -> None:
        """Keeps the rollout until it is acknowledged. ValueError if it is invalid, TimeoutError when
        `max_pending` stay unacknowledged."""
        self._progress = time.monotonic()
        with self._room:
            if rollout.trainer_term < 0:
                rollout.trainer_term = max(self._installed["term"], 0)
            rollout.validate()
            if not self._room.wait_for(
                    lambda: self._over or len(self._pending) < self._max_pending, timeout):
                raise TimeoutError(f"{len(self._pending)} rollouts wait for acknowledgement")
            if self._over:
                raise ConnectionError("the session is over")
            self._pending[rollout.rollout_id] = Pending(rollout)
            self._granted.discard((rollout.group_id, rollout.sample_index))

    def commit(self, ready: WeightsReady, installed: dict[str, np.ndarray]) -> None:
        """Says what is installed now; hashes `installed`, the arrays the sampler really uses."""
        body = {"version": ready.version, "root_hash": root_hash_of(ready.manifest, installed)}
        with self._lock:
            self._installed = {"term": ready.manifest["trainer_term"], "version": ready.version,
                               "root": body["root_hash"]}
            self._commits.append(body)

    def pause(self) -> None:
        """Keep what was granted, take no more: the server restarts or takes weights. Returns at
        once, as resume() does."""
        self._progress = time.monotonic()
        with self._lock:
            self._paused = True
            self._last_heartbeat = 0.0  # the next round says it

    def resume(self) -> None:
        self._progress = time.monotonic()
        with self._lock:
            if self._paused:
                self._paused, self._resumed, self._last_heartbeat = False, True, 0.0

    def close(self, reason: str = "", timeout: float = 10.0) -> bool:
        """Waits for acknowledgements, says BYE. After the trainer's END it waits for neither them nor the
        answer to BYE. False when rollouts were left without acknowledgement or `timeout` ran out before."""
        deadline = time.monotonic() + timeout
        with self._room:
            self._room.wait_for(lambda: self._over or self._ended or not self._pending, timeout)
            self._leaving = reason
        self._thread.join(max(0.0, deadline - time.monotonic()))
        clean = self._over and not self._pending
        self._over = True
        self._thread.join(2.0)
        self._context.destroy(linger=500)
        return clean

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.close()
