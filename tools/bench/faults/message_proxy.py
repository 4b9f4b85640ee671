"""A ZeroMQ proxy between workers and a trainer that loses, doubles, holds back and swaps messages.

ROUTER in front, one DEALER per worker session behind, under the session's own routing id: the trainer sees the same
identities as without it. Faults are armed from outside and strike the next message of their type and direction. Every ACK
that the trainer sends is noted before any fault can strike it: the wire's own evidence of what was accepted.
"""

import collections
import dataclasses
import threading
import time

import msgpack
import zmq

UP, DOWN = "up", "down"  # worker to trainer, trainer to worker
KINDS = ("message_drop", "message_duplicate", "message_delay", "message_reorder")
REORDER_WAIT_S = 1.0  # without a next message to swap with


@dataclasses.dataclass
class Fault:
    kind: str
    direction: str
    type: str | None  # of the message it strikes; None: any
    seconds: float = 0.0  # of a delay


@dataclasses.dataclass
class Channel:
    """One direction of one session: messages on their way, in order."""

    queue: collections.deque = dataclasses.field(default_factory=collections.deque)  # (not before, frames)
    held_until: float = 0.0
    swapped: tuple | None = None  # (deadline, frames): goes after the next message


def header_of(frames: list[bytes]) -> dict:
    try:
        header = msgpack.unpackb(frames[0])
        return header if isinstance(header, dict) else {}
    except (ValueError, msgpack.UnpackException):
        return {}


class MessageProxy:
    """Runs in a thread of its own from construction to close(). arm(), counts and acks may be used from others."""

    def __init__(self, target: str):
        self._target = target
        self._context = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.setsockopt(zmq.LINGER, 0)
        self._front.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.address = f"tcp://127.0.0.1:{self._front.bind_to_random_port('tcp://127.0.0.1')}"
        self._backs: dict[bytes, zmq.Socket] = {}
        self._channels: dict[tuple[bytes, str], Channel] = collections.defaultdict(Channel)
        self._lock = threading.Lock()
        self._armed: list[Fault] = []
        self._stop = False
        self.counts = collections.Counter()  # faults that struck, by kind
        self.struck = collections.Counter()  # and by kind, direction and message type
        self.acks: list[tuple[str, str, int]] = []  # rollout_id, status, trainer_term of the trainer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def arm(self, fault: Fault) -> None:
        with self._lock:
            self._armed.append(fault)

    def close(self) -> None:
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._stop:
            ready = dict(poller.poll(5))
            if self._front in ready:
                identity, *frames = self._front.recv_multipart()
                self._pass(identity, UP, frames, poller)
            for identity, back in list(self._backs.items()):
                if back in ready:
                    self._pass(identity, DOWN, back.recv_multipart(), poller)
            self._flush()
        for socket in (self._front, *self._backs.values()):
            socket.close(0)
        self._context.term()

    def _back(self, identity: bytes, poller: zmq.Poller) -> zmq.Socket:
        if identity not in self._backs:
            name = identity.rsplit(b"/", 1)[0]
            if b"/" in identity:  # a new session of a worker ends its older ones
                for old in [i for i in self._backs if i.rsplit(b"/", 1)[0] == name]:
                    poller.unregister(self._backs[old])
                    self._backs.pop(old).close(0)
            back = self._context.socket(zmq.DEALER)
            back.setsockopt(zmq.LINGER, 0)
            if b"/" in identity:  # others are ids that a ROUTER gave, and cannot be asked for
                back.setsockopt(zmq.ROUTING_ID, identity)
            back.connect(self._target)
            poller.register(back, zmq.POLLIN)
            self._backs[identity] = back
        return self._backs[identity]

    def _pass(self, identity: bytes, direction: str, frames: list[bytes], poller: zmq.Poller) -> None:
        self._back(identity, poller)
        header = header_of(frames)
        if direction == DOWN and header.get("type") == "ACK":
            body = header["body"]
            self.acks.append((body["rollout_id"], body["status"], header["trainer_term"]))
        channel, now = self._channels[identity, direction], time.monotonic()
        fault = self._take_fault(direction, header.get("type"))
        kind = fault.kind if fault else None
        if kind == "message_reorder" and channel.swapped is None:
            channel.swapped = (now + REORDER_WAIT_S, frames)
            return
        if kind == "message_delay":
            channel.held_until = max(channel.held_until, now + fault.seconds)
        copies = {"message_drop": 0, "message_duplicate": 2}.get(kind, 1)
        channel.queue.extend([(channel.held_until, frames)] * copies)
        if channel.swapped is not None:
            channel.queue.append((channel.held_until, channel.swapped[1]))
            channel.swapped = None

    def _take_fault(self, direction: str, message_type: str | None) -> Fault | None:
        with self._lock:
            for fault in self._armed:
                if fault.direction == direction and fault.type in (None, message_type):
                    self._armed.remove(fault)
                    self.counts[fault.kind] += 1
                    self.struck[f"{fault.kind} {direction} {message_type}"] += 1
                    return fault
        return None

    def _flush(self) -> None:
        now = time.monotonic()
        for (identity, direction), channel in self._channels.items():
            if channel.swapped is not None and channel.swapped[0] <= now:
                channel.queue.append((channel.held_until, channel.swapped[1]))
                channel.swapped = None
            while channel.queue and channel.queue[0][0] <= now:
                frames = channel.queue.popleft()[1]
                try:
                    if direction == DOWN:
                        self._front.send_multipart([identity, *frames], zmq.NOBLOCK)
                    elif identity in self._backs:
                        self._backs[identity].send_multipart(frames, zmq.NOBLOCK)
                except zmq.Again:
                    pass  # one that takes nothing loses messages: a fault like another
