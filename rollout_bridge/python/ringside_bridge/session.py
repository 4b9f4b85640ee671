"""The client's thread: keeps one session after the other alive and does what the trainer says."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass

import zmq

from . import images
from .events import Disconnected, Ended, Failed, Granted, RolloutRejected, WeightsReady
from .schema import Grant, Rollout
from .sockets import CurveKeys, open_dealer
from .weights import Receiver, parse_manifest
from .wire import Message, VersionError, WireError, pack, unpack

_REJOIN = {"unknown_session", "sequence_gap", "timeout"}
_FIRST_HELD_OUT_GROUP = 1 << 61
_MAX_KNOWN_IMAGES = 16 * 1024
_BUSY_RETRY = 1.0  # seconds


class _Rejoin(Exception):
    pass


@dataclass
class Pending:
    rollout: Rollout
    sent_as: int = 0  # number of its sending; 0: to be sent
    asked: int = 0  # answers UNKNOWN_IMAGES so far
    not_before: float = 0.0


def _drop_sample(granted: Granted, rollout: Rollout) -> None:
    for group in granted.groups:
        if group.group_id == rollout.group_id:
            group.sample_indices = [s for s in group.sample_indices if s != rollout.sample_index]
    granted.groups = [group for group in granted.groups if group.sample_indices]


class SessionLoop:
    """What runs in the thread. Fields without a note are the thread's own; `_lock` guards `_pending`,
    `_granted`, `_unseen`, `_installed`, `_commits`, `_paused`, `_leaving` and `_ended`, which the
    caller's side shares."""

    def __init__(self, address: str, worker_id: str, capacity_samples: int, max_pending: int,
                 chunk_bytes: int, curve: CurveKeys | None, settings: dict | None = None):
        self._settings, self._welcome = dict(settings or {}), {}
        self._address, self._worker_id, self._curve = address, worker_id, curve
        self._capacity, self._max_pending, self._chunk_bytes = (capacity_samples, max_pending,
                                                                chunk_bytes)
        self._incarnation = time.time_ns() // 1000
        self._events: queue.Queue = queue.Queue()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._pending: dict[str, Pending] = {}
        self._sendings = 0
        # Hashes of images that the trainer has, or gets before what is sent next; it may drop them and ask.
        self._known_images: set[str] = set()
        self._sent_images: list[tuple[str, int]] = []  # hash and bytes of those without an answer, in order
        self._granted: set[tuple[int, int]] = set()  # in this session, and not sent since
        self._unseen: list[Granted] = []  # not polled yet
        self._installed = {"term": -1, "version": -1, "root": ""}
        self._commits: list[dict] = []
        self._paused = self._resumed = False
        self._leaving: str | None = None
        self._over = False
        self._ended = False  # the trainer said END: it may be gone before it answers anything
        self._progress = time.monotonic()
        self._hung_since: float | None = None
        self._context = zmq.Context()
        # What was staged last, the base of the next version's changes: a copy of the weights in
        # host memory, shared with the WeightsReady that was made of it.
        self._base: Receiver | None = None

    def _run(self) -> None:
        backoff = 0.1
        try:
            while not self._over:
                try:
                    self._session()
                    return
                except _Rejoin as why:
                    if self._ended:
                        return
                    if self._joined:
                        self._events.put(Disconnected(str(why)))
                        backoff = 0.1
                    self._incarnation += 1  # part of the identity: the old one may linger
                    time.sleep(backoff)
                    self._await_progress()
                    backoff = min(2 * backoff, 5.0)
                finally:
                    self._control.close(linger=500)
                    self._close_bulk()
        except Exception as error:  # noqa: BLE001 - handed to the caller by poll()
            self._events.put(error)
        finally:
            with self._room:
                self._over = True
                self._room.notify_all()

    def _await_progress(self) -> None:
        """Given up because the caller's code was silent, stay away until it is not: a worker that
        hangs would only take work."""
        while self._hung_since is not None and self._progress == self._hung_since:
            if self._over:
                return
            time.sleep(0.05)
        self._hung_since = None

    def _session(self) -> None:
        self._joined, self._run_id, self._term = False, "", -1
        self._sent_seq = self._received_seq = 0
        self._receiver: Receiver | None = None
        self._offer = self._staged = self._bulk = None
        self._unacked = 0
        self._known_images -= {image for image, _ in self._sent_images}  # they may be lost
        self._sent_images.clear()
        self._window = 0  # bytes that may be sent and not acknowledged; 0: none now
        self._leave_said = False
        self._outbox: list[tuple] = []
        with self._lock:
            self._commits.clear()
            for pending in self._pending.values():
                pending.sent_as = 0
            # The trainer has taken back all grants; it grants again what it still needs.
            self._granted.clear()
            installed, pending_count = self._installed, len(self._pending)
        self._control = open_dealer(self._context, self._address,
                                    f"{self._worker_id}/{self._incarnation}", self._curve)
        self._queue("HELLO", {"capacity_samples": self._capacity,
                              "installed_term": installed["term"],
                              "installed_version": installed["version"],
                              "installed_root": installed["root"], "client": "ringside-python/1",
                              "pending": pending_count, "settings": self._settings})
        self._last_message = self._last_heartbeat = time.monotonic()
        hello_waits = True
        while not self._over:
            if hello_waits and not self._outbox:  # HELLO is on its way: the answer is due in 5 s
                hello_waits, self._last_message = False, time.monotonic()
            self._receive()
            if self._over:
                return
            if self._joined:
                self._work()
            self._flush()
            if self._ended and self._leave_said:  # BYE is sent if the trainer is still there
                return
            limit = self._welcome["timeout_ms"] / 1000 if self._joined else 5.0
            if not hello_waits and time.monotonic() - self._last_message > limit:
                raise _Rejoin(f"no message for {limit:.1f} s")

    def _queue(self, kind: str, body: dict, buffers: list[tuple] = ()) -> None:
        self._outbox.append((kind, body, buffers))

    def _pack(self, kind: str, body: dict, seq: int, buffers: list[tuple] = ()) -> list[bytes]:
        return pack(kind, body, run_id=self._run_id, trainer_term=self._term,
                    worker_id=self._worker_id, incarnation=self._incarnation, seq=seq,
                    buffers=buffers)

    def _flush(self) -> None:
        try:
            while self._outbox:
                kind, body, buffers = self._outbox[0]
                parts = self._pack(kind, body, self._sent_seq + 1, buffers)
                self._control.send_multipart(parts, zmq.DONTWAIT)
                self._sent_seq += 1
                self._outbox.pop(0)
            for request in self._receiver.requests() if self._receiver else ():
                try:
                    self._bulk.send_multipart(self._pack("CHUNK_REQUEST", request, 0), zmq.DONTWAIT)
                except zmq.Again:
                    self._receiver.unsent(request)
        except zmq.Again:
            pass  # not connected, or the peer is slow: later

    def _receive(self) -> None:
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        if self._bulk:
            poller.register(self._bulk, zmq.POLLIN)
        for socket, _ in poller.poll(20):
            if socket is self._control:
                try:
                    message = unpack(socket.recv_multipart())
                except VersionError as error:
                    self._events.put(Failed("unsupported", f"message of the trainer: {error}"))
                    self._over = True
                    return
                except WireError as error:
                    raise _Rejoin(f"trainer sent what cannot be read: {error}") from error
                self._on_message(message)
            elif socket is self._bulk:
                try:
                    self._on_bulk(unpack(socket.recv_multipart()))
                except WireError:
                    pass  # a damaged chunk is missed and asked for again

    def _on_message(self, message: Message) -> None:
        self._last_message = time.monotonic()
        if message.type == "ERROR":
            body = message.body
            if body.get("fatal"):
                self._events.put(Failed(body["reason"], body["detail"]))
                self._over = True
            elif not self._joined or body.get("reason") in _REJOIN:
                if body.get("reason") == "timeout":
                    self._hung_since = self._progress
                raise _Rejoin(f"trainer: {body.get('reason')}: {body.get('detail')}")
            return
        if message.type == "BYE":
            self._over = True
            return
        self._received_seq += 1
        if message.seq != self._received_seq:
            raise _Rejoin(f"received seq {message.seq}, expected {self._received_seq}")
        handler = getattr(self, "_on_" + message.type.lower(), None)
        if handler is None or (not self._joined and message.type != "WELCOME"):
            raise _Rejoin(f"unexpected {message.type}")
        handler(message)

    def _on_welcome(self, message: Message) -> None:
        self._joined, self._welcome = True, message.body
        self._run_id, self._term = message.run_id, message.trainer_term
        self._set_window(message.body)
        with self._lock:
            self._say_ready()

    def _set_window(self, body: dict) -> None:
        window = body.get("window_bytes", -1)
        if window >= 0:
            self._window = window

    def _say_ready(self) -> None:
        """Wants work, unless paused. Under the lock."""
        if not self._paused and self._installed["term"] == self._term:
            self._queue("READY", {"version": self._installed["version"]})

    def _on_heartbeat(self, _: Message) -> None:
        pass

    def _on_end(self, message: Message) -> None:
        with self._room:
            self._ended = True
            self._room.notify_all()
        self._events.put(Ended(message.body.get("reason", "")))

    def _on_credit(self, message: Message) -> None:
        self._set_window(message.body)
        groups = [Grant(**{name: body[name] for name in Grant.__dataclass_fields__})
                  for body in message.body["groups"]]
        withdrawn = {(body["group_id"], sample) for body in message.body.get("withdrawn", ())
                     for sample in body["sample_indices"]}
        if not groups and not withdrawn:
            return
        granted = Granted(groups, withdrawn)
        with self._lock:
            self._granted -= withdrawn
            self._granted |= {(g.group_id, s) for g in groups for s in g.sample_indices}
            self._unseen.append(granted)
        self._events.put(granted)

    def _without_sent(self, granted: Granted) -> Granted:
        """The grant as the caller sees it: without samples whose rollout waits for its ACK, because
        that rollout is sent again."""
        with self._lock:
            self._unseen = [other for other in self._unseen if other is not granted]
            for pending in self._pending.values():
                _drop_sample(granted, pending.rollout)
        return granted

    def _answered(self, rollout_id: str) -> Pending | None:
        """The rollout that an ACK answers. ACKs come in the order of the ROLLOUTs, so one without an id
        (the trainer could not read it) answers the rollout that was sent first."""
        if rollout_id:
            return self._pending.get(rollout_id)
        sent = [pending for pending in self._pending.values() if pending.sent_as]
        return min(sent, key=lambda pending: pending.sent_as, default=None)

    def _on_ack(self, message: Message) -> None:
        body = message.body
        self._set_window(body)
        with self._room:
            pending = self._answered(body["rollout_id"])
            if pending is None:
                return
            rollout = pending.rollout
            if pending.sent_as:
                self._unacked -= sum(a.nbytes for _, _, a in rollout.buffers())
            if body["status"] in ("BUSY", "UNKNOWN_IMAGES"):
                self._send_again(pending, body)
                return
            del self._pending[rollout.rollout_id]
            for granted in self._unseen:  # they came before this answer
                _drop_sample(granted, rollout)
            self._room.notify_all()
        if body["status"] == "REJECTED":
            self._events.put(RolloutRejected(rollout.rollout_id, body["reason"], body["detail"]))

    def _send_again(self, pending: Pending, body: dict) -> None:
        """A trainer with little room may ask again: what it had the last time may have gone meanwhile. Then all
        images of the rollout go together."""
        pending.sent_as, pending.not_before = 0, time.monotonic() + _BUSY_RETRY
        if body["status"] != "UNKNOWN_IMAGES":
            return
        pending.asked += 1
        self._known_images -= set(body.get("images", ()))
        if pending.asked > 1:
            self._known_images -= {image.hash for image in images.distinct(pending.rollout.images)}
        if pending.asked <= 2:
            pending.not_before = 0.0

    def _on_image_ack(self, message: Message) -> None:
        """They come in the order of the IMAGEs. A refused image is asked for again; the trainer tells a worker to
        leave that sends nothing else."""
        self._set_window(message.body)
        with self._lock:
            if self._sent_images:
                self._unacked -= self._sent_images.pop(0)[1]

    def _fits(self, size: int) -> bool:
        return not self._unacked or self._unacked + size <= self._window

    def _queue_images(self, rollout: Rollout) -> bool:
        """The images that go ahead of the rollout, as far as the window allows. False when one does not fit."""
        if rollout.group_id >= _FIRST_HELD_OUT_GROUP:
            return True  # nobody reads them
        for image in images.distinct(rollout.images):
            if image.hash in self._known_images:
                continue
            if not self._fits(image.pixels.nbytes):
                return False
            self._queue("IMAGE", {"hash": image.hash}, [("rgb", "U8", image.pixels)])
            if len(self._known_images) >= _MAX_KNOWN_IMAGES:
                self._known_images.clear()
            self._known_images.add(image.hash)
            self._sent_images.append((image.hash, image.pixels.nbytes))
            self._unacked += image.pixels.nbytes
        return True

    def _on_weights_offer(self, message: Message) -> None:
        try:
            self._offer = parse_manifest(message.frames["manifest"])
        except (WireError, KeyError, TypeError) as error:
            self._queue("STAGE_FAILED", {"version": message.body.get("version", -1),
                                         "detail": str(error)})
            return
        if self._receiver is None:  # a version under way is finished first
            self._start_staging()

    def _start_staging(self) -> None:
        self._receiver = None
        if self._offer is not None:
            chunk = min(self._chunk_bytes, self._welcome["chunk_bytes"])
            self._receiver, self._offer = Receiver(self._offer, chunk, base=self._base), None
            self._bulk = self._bulk or open_dealer(self._context, self._welcome["weights_address"],
                                                   None, self._curve)
            if self._receiver.complete:  # nothing changed
                self._finish_staging()
        else:
            self._close_bulk()

    def _close_bulk(self) -> None:
        if getattr(self, "_bulk", None) is not None:
            self._bulk.close(linger=0)
        self._bulk = None

    def _on_bulk(self, message: Message) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        failure = None
        if message.type == "ERROR":
            if (message.body.get("reason") == "gone"
                    and message.body.get("version") == receiver.manifest["version"]):
                failure = "gone"
        elif message.type == "CHUNK" and message.trainer_term == self._term:
            try:
                receiver.accept(message.body, message.frames["data"])
            except WireError as error:
                failure = str(error)
        manifest = receiver.manifest
        if failure is not None:
            self._queue("STAGE_FAILED", {"version": manifest["version"], "detail": failure})
            self._start_staging()
        elif receiver.complete:
            self._finish_staging()

    def _finish_staging(self) -> None:
        receiver = self._base = self._receiver
        manifest = receiver.manifest
        receiver.release()
        self._staged = WeightsReady(manifest["version"], manifest, receiver.tensors())
        self._queue("STAGED", {"version": manifest["version"], "root_hash": manifest["root_hash"],
                               "encoding": "overwrite" if receiver.builds_on_base else "dense",
                               "refetched": receiver.refetched})
        self._start_staging()

    def _on_commit(self, message: Message) -> None:
        staged = self._staged
        body = message.body
        if staged is not None and (staged.version, staged.manifest["root_hash"]) == (
                body["version"], body["root_hash"]):
            self._events.put(staged)
            self._staged = None

    def _work(self) -> None:
        """Heartbeat, commits, images and rollouts within the window, BYE."""
        now = time.monotonic()
        with self._lock:
            for body in self._commits:
                self._queue("COMMITTED", body)
                self._say_ready()
            self._commits.clear()
            if self._resumed and not self._paused:
                self._resumed = False
                self._say_ready()
            if now - self._last_heartbeat >= self._welcome["heartbeat_ms"] / 1000:
                self._last_heartbeat = now
                self._queue("HEARTBEAT", {
                    "state": self._state_word(),
                    "version": self._installed["version"], "queue_depth": len(self._granted),
                    "progress_age_ms": int(1000 * (now - self._progress)),
                    "pending": len(self._pending)})
            for pending in self._pending.values() if self._window else ():
                if pending.sent_as or pending.not_before > now:
                    continue
                buffers = pending.rollout.buffers()
                size = sum(array.nbytes for _, _, array in buffers)
                if not self._queue_images(pending.rollout) or not self._fits(size):
                    break
                self._queue("ROLLOUT", pending.rollout.body(), buffers)
                self._sendings += 1
                pending.sent_as = self._sendings
                self._unacked += size
            if self._leaving is not None:
                self._queue("BYE", {"reason": self._leaving})
                self._leaving, self._leave_said = None, True

    def _state_word(self) -> str:
        if self._leave_said:
            return "bye"
        if self._paused:
            return "paused"
        if self._installed["term"] == self._term:
            return "ready"
        return "sync" if self._receiver or self._staged else "join"
