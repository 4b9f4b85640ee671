"""The kinds of scenes: what stands between the processes, which faults strike and how densely."""

import dataclasses
import subprocess
import sys

import byte_proxy
import injectors
import message_proxy
import scene as scenes


@dataclasses.dataclass
class Arrangement:
    faults: dict[str, int]  # kind -> how many are tried in a run
    gap_s: float  # mean time between two
    steps: int
    set_up: object  # (scene, tools, rng) -> None, before the processes start
    beside: int = 0  # busy processes besides trainer and workers; with any, there is one rank and one worker
    by_default: bool = True


def plain(scene, tools, rng) -> None:
    pass


def through_messages(scene, tools, rng) -> None:
    tools.messages = message_proxy.MessageProxy(scene.rollout_address)
    tools.chunks = message_proxy.MessageProxy(scene.weights_address)
    scene.shared_memory = False
    scene.worker_rollout_address, scene.worker_weights_address = tools.messages.address, tools.chunks.address


def through_bytes(scene, tools, rng) -> None:
    """CURVE on both sides, and a TCP proxy that sees ciphertext."""
    keys = scene.folder / "keys"
    for name in ("trainer", "worker"):
        subprocess.run([scene.binary, "keygen", "--out", keys, "--name", name], check=True, stdout=subprocess.DEVNULL)
    (keys / "allowed").write_text((keys / "worker.pub").read_text())
    scene.trainer_words += [f"bridge.curve.trainer_secret={keys / 'trainer.key'}", f"bridge.curve.allowed_workers={keys / 'allowed'}"]
    scene.worker_words += [f"bridge.curve.worker_secret={keys / 'worker.key'}", f"bridge.curve.trainer_public={keys / 'trainer.pub'}"]
    targets = [("127.0.0.1", scene.rollout_port), ("127.0.0.1", scene.weights_port)]
    tools.bytes = byte_proxy.ByteProxy(targets, rng.randrange(1 << 30))
    scene.shared_memory = False
    scene.worker_rollout_address, scene.worker_weights_address = (f"tcp://127.0.0.1:{port}" for port in tools.bytes.ports)


def on_a_small_disk(scene, tools, rng) -> None:
    size = f"size={injectors.DISK_MIB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "ringside-faults", scene.run_dir], check=True)
    tools.mount = scene.run_dir


def with_clocks(scene, tools, rng) -> None:
    if injectors.FAKETIME is None:
        raise SystemExit("faults: libfaketime is missing; tools/setup.sh --faults installs it")
    for side, environment in (("trainer", scene.trainer_env), ("worker", scene.worker_env)):
        clock = scene.folder / f"clock-{side}"
        clock.write_text("+0s\n")
        tools.clocks.append(clock)
        environment.update(LD_PRELOAD=str(injectors.FAKETIME), FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1",
                           FAKETIME_DONT_FAKE_MONOTONIC="1", FAKETIME_DONT_RESET="1")


def beside_a_server(scene, tools, rng) -> None:
    """The worker is a bridge process between an inference server, which lives through everything, and the trainer."""
    port = scenes.free_port()
    model = next(word.split("=", 1)[1] for word in scene.words if word.startswith("model.path="))
    scene.beside = [scenes.Process("server", [sys.executable, "-m", "ringside_bridge.hf_server", "--model", model, "--port", port],
                                   scene.folder, {"PYTHONPATH": str(scenes.ROOT / "rollout_bridge/python")})]
    scene.worker_options += ["--server", "python", f"rollout.server_options.url=http://127.0.0.1:{port}"]


def by_run_directory(scene, tools, rng) -> None:
    """Workers are told the run directory, not addresses, and the trainer takes any free port: a new one at each start."""
    scene.rollout_address = scene.weights_address = "tcp://127.0.0.1:0"
    scene.worker_rollout_address = scene.worker_weights_address = "tcp://127.0.0.1:0"
    scene.worker_options += ["--run-dir", str(scene.run_dir)]


ARRANGEMENTS = {
    "processes": Arrangement({"worker_kill": 7, "trainer_kill": 7, "worker_stop": 7, "trainer_stop": 7}, 1.0, 36, plain),
    "messages": Arrangement({**{kind: 10 for kind in message_proxy.KINDS}, "trainer_kill": 1, "worker_kill": 1}, 0.35, 40,
                            through_messages),
    "curve": Arrangement({"tcp_cut": 20, "trainer_kill": 1, "worker_kill": 1}, 0.5, 40, through_bytes),
    "disk": Arrangement({"disk_full": 14, "worker_kill": 1}, 0.5, 60, on_a_small_disk),
    "clock": Arrangement({"clock_jump": 20, "trainer_kill": 1, "worker_kill": 2}, 0.5, 30, with_clocks),
    "server": Arrangement({"bridge_kill": 12, "trainer_kill": 1}, 1.0, 24, beside_a_server, beside=1),
    "discovery": Arrangement({"trainer_kill": 3, "worker_kill": 2}, 1.2, 30, by_run_directory, by_default=False)}
