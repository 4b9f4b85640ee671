"""The faults. inject(scene, tools, rng) strikes once and returns whether it did; what it undoes later goes to tools.later."""

import dataclasses
import heapq
import itertools
import pathlib
import signal
import subprocess
import time

import byte_proxy
import message_proxy

STOP_S = (1.8, 3.0)  # of SIGSTOP; the deadline of the scenes is 1.5 s
DISK_MIB = 96
FAKETIME = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
# Types are drawn with equal weight: most messages are heartbeats, most faults should not be.
UP_TYPES = ("HELLO", "READY", "ROLLOUT", "ROLLOUT", "HEARTBEAT", "STAGED", "COMMITTED", None)
DOWN_TYPES = ("WELCOME", "CREDIT", "ACK", "ACK", "HEARTBEAT", "WEIGHTS_OFFER", "COMMIT", None)


class Later:
    """Actions that are due at a time."""

    def __init__(self):
        self._heap, self._count = [], itertools.count()

    def after(self, seconds: float, action) -> None:
        heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._count), action))

    def run_due(self, all_of_them: bool = False) -> None:
        while self._heap and (all_of_them or self._heap[0][0] <= time.monotonic()):
            heapq.heappop(self._heap)[2]()


@dataclasses.dataclass
class Tools:
    """What stands between the processes of a scene, and what may strike them."""

    later: Later
    messages: message_proxy.MessageProxy | None = None
    chunks: message_proxy.MessageProxy | None = None  # of the weights socket
    bytes: byte_proxy.ByteProxy | None = None
    clocks: list[pathlib.Path] = dataclasses.field(default_factory=list)
    mount: pathlib.Path | None = None

    def close(self) -> None:
        self.later.run_due(all_of_them=True)
        for proxy in (self.messages, self.chunks, self.bytes):
            if proxy:
                proxy.close()
        if self.mount:
            subprocess.run(["umount", self.mount], check=True)


def kill_worker(scene, tools, rng) -> bool:
    return rng.choice(scene.workers).kill()


def kill_trainer(scene, tools, rng) -> bool:
    if not scene.trainer.kill():
        return False
    if rng.random() < 0.25:  # and once more while it starts
        tools.later.after(rng.uniform(0.25, 1.5), scene.trainer.kill)
    return True


def stop(process, tools, rng) -> bool:
    pid = process.target()
    if pid is None or not process.signal(signal.SIGSTOP):
        return False

    def go_on():
        if process.target() == pid:
            process.signal(signal.SIGCONT)
    tools.later.after(rng.uniform(*STOP_S), go_on)
    return True


def stop_worker(scene, tools, rng) -> bool:
    return stop(rng.choice(scene.workers), tools, rng)


def stop_trainer(scene, tools, rng) -> bool:
    return stop(scene.trainer, tools, rng)


def strike_message(kind: str):
    """Arms a fault for the next message of a drawn type; the proxy counts it when it strikes."""
    def inject(scene, tools, rng) -> bool:
        if rng.random() < 0.2:
            direction = rng.choice((message_proxy.UP, message_proxy.DOWN))
            tools.chunks.arm(message_proxy.Fault(kind, direction, None, rng.uniform(0.1, 2.5)))
            return False
        direction, types = rng.choice(((message_proxy.UP, UP_TYPES), (message_proxy.DOWN, DOWN_TYPES)))
        tools.messages.arm(message_proxy.Fault(kind, direction, rng.choice(types), rng.uniform(0.1, 2.5)))
        return False
    return inject


def cut_connection(scene, tools, rng) -> bool:
    tools.bytes.cut()
    return False  # counted by the proxy


def fill_disk(scene, tools, rng) -> bool:
    """Nothing more fits on the run directory's file system until the ballast goes."""
    ballast = tools.mount / "ballast"
    if ballast.exists():
        return False
    subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=64k", f"count={DISK_MIB * 16}"], check=False,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tools.later.after(rng.uniform(0.2, 1.5), lambda: ballast.unlink(missing_ok=True))
    return True


def jump_clock(scene, tools, rng) -> bool:
    """Hours to either side, while the processes run; each side of the bridge has a clock of its own."""
    rng.choice(tools.clocks).write_text(f"{rng.choice((-1, 1)) * rng.randrange(600, 40000):+d}s\n")
    return True


def kill_bridge(scene, tools, rng) -> bool:
    """The worker here is the process between a server and the trainer; the server lives on."""
    return rng.choice(scene.workers).kill()


INJECTORS = {
    "worker_kill": kill_worker, "trainer_kill": kill_trainer, "bridge_kill": kill_bridge, "worker_stop": stop_worker,
    "trainer_stop": stop_trainer, "tcp_cut": cut_connection, "disk_full": fill_disk, "clock_jump": jump_clock,
    **{kind: strike_message(kind) for kind in message_proxy.KINDS}}


def counted_by_proxies(tools: Tools) -> dict[str, int]:
    counts = {kind: 0 for kind in message_proxy.KINDS}
    for proxy in (tools.messages, tools.chunks):
        for kind, count in (proxy.counts if proxy else {}).items():
            counts[kind] += count
    counts["tcp_cut"] = tools.bytes.cuts if tools.bytes else 0
    return counts
