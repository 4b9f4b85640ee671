"""Runs trainer ranks and rollout workers as Ray actors.

Usage: ray_driver.py RECIPE ... [key=value ...] --run-dir DIR [--address ADDRESS]
                     [--gpus-per-rank G] [--gpus-per-worker G] [--cpus-per-rank C] [--cpus-per-worker C]

Ranks are placed as one group, on as few nodes as hold them; every worker is a group of its own. Addresses, ports and keys
are derived. A worker that dies is started again, on another node if its own is gone. To change how many there are while it
runs, write the number to DIR/launch/workers. A rank that dies ends the run with its exit code. SIGTERM and SIGINT make the
trainer save and stop: exit code 143. The same command resumes.
Checkout, model and data must be at the same paths on all nodes; DIR on the nodes of the trainer's ranks.
"""
import argparse
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import launch_plan

POLL_S = 0.5
RANKS_PLACED_S = 120  # until the cluster has room for the ranks
WORKER_PLACED_S = 5  # for a worker, while the trainer runs; then it is tried again
LEAVE_S = 20  # for workers to leave by themselves after the run
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@ray.remote(max_restarts=0)
class Process:
    """One process of the program, on the node where this actor was placed. It ends with the actor."""

    def __init__(self):
        self._process, self._folder = None, None

    def node(self) -> tuple[str, str]:
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return probe.getsockname()[1]

    def start(self, words: list[str], environment: dict[str, str], files: dict[str, str]) -> None:
        """`files`: name to text; {files} in `words` is the folder where they are written, readable by this user alone."""
        self._folder = tempfile.TemporaryDirectory()
        for name, text in files.items():
            path = pathlib.Path(self._folder.name) / name
            path.touch(mode=0o600)
            path.write_text(text)
        words = [word.replace("{files}", self._folder.name) for word in words]
        self._process = subprocess.Popen(words, env=os.environ | environment, preexec_fn=end_with_parent)

    def poll(self) -> int | None:
        return self._process.poll()

    def pid(self) -> int:
        return self._process.pid

    def read(self, path: str) -> str:
        """The text of a file of this node; "" if it is not there."""
        return pathlib.Path(path).read_text() if pathlib.Path(path).exists() else ""

    def remove(self, path: str) -> None:
        pathlib.Path(path).unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


class NoRoom(Exception):
    pass


def placed(bundles: list[dict], seconds: float) -> tuple[list, object]:
    """One actor a bundle, and their group. Raises NoRoom when the cluster has none within that time."""
    group = placement_group(bundles, strategy="PACK")
    deadline = time.monotonic() + seconds
    while not group.wait(1):  # short waits: a signal is handled between them
        if time.monotonic() > deadline:
            remove_placement_group(group)
            raise NoRoom(f"the cluster has no room for {bundles}; free are {ray.available_resources()}")
    actors = [Process.options(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0),
                              scheduling_strategy=PlacementGroupSchedulingStrategy(group, i)).remote()
              for i, bundle in enumerate(bundles)]
    return actors, group


class Trainer:
    """The ranks. They are numbered node by node, so that neighbours share a machine."""

    def __init__(self, inputs: list[str], run_dir: pathlib.Path, ranks: int, bundle: dict):
        self.run_dir = run_dir
        actors, _ = placed([bundle] * ranks, RANKS_PLACED_S)
        nodes = ray.get([actor.node.remote() for actor in actors])
        order = sorted(range(ranks), key=lambda i: nodes[i])
        self.actors, nodes = [actors[i] for i in order], [nodes[i] for i in order]
        host, port = nodes[0][1], ray.get(self.actors[0].free_port.remote())
        self.keys = launch_plan.make_keys(run_dir)
        ray.get(self.actors[0].remove.remote(str(run_dir / "bridge/endpoint.json")))  # of an earlier run
        words = [launch_plan.program(), "train", *inputs, *launch_plan.trainer_settings(self.keys, host),
                 "--run-dir", str(run_dir)]
        for rank, actor in enumerate(self.actors):
            local_rank = sum(node == nodes[rank] for node in nodes[:rank])
            ray.get(actor.start.remote(words, {
                "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(local_rank), "MASTER_ADDR": host,
                "MASTER_PORT": str(port)}, {}))

    def addresses(self) -> list[str]:
        """Settings for workers; [] until rank 0 has bound its sockets."""
        text = ray.get(self.actors[0].read.remote(str(self.run_dir / "bridge/endpoint.json")))
        found = json.loads(text) if text else {}
        return [f"bridge.{name}={found[name]}" for name in ("rollout_address", "weights_address")] if found else []

    def exit_code(self) -> int | None:
        """None while all run; that of the first rank that failed; 0 when all have ended well."""
        try:
            codes = ray.get([actor.poll.remote() for actor in self.actors])
        except ray.exceptions.RayError as error:
            print(f"launch: a rank's actor is gone: {error}", file=sys.stderr)
            return 1
        failed = [code for code in codes if code]
        return failed[0] if failed else (None if None in codes else 0)

    def stop(self) -> None:
        for actor in self.actors:
            actor.stop.remote()


class Workers:
    """As many workers as wanted, each started again when it dies."""

    def __init__(self, words: list[str], keys: pathlib.Path, bundle: dict):
        self._words = [launch_plan.program(), "rollout", *words, "bridge.curve.worker_secret={files}/worker.key",
                       "bridge.curve.trainer_public={files}/trainer.pub"]
        self._files = {name: (keys / name).read_text() for name in ("worker.key", "trainer.pub")}
        self._bundle, self._running = bundle, {}  # name -> (actor, group)

    def _start(self, name: str) -> None:
        try:
            (actor,), group = placed([self._bundle], WORKER_PLACED_S)
        except NoRoom as error:
            print(f"launch: {name} waits: {error}", file=sys.stderr, flush=True)
            return
        self._running[name] = actor, group
        ray.get(actor.start.remote([*self._words, "--worker-id", name], {}, self._files))
        print(f"launch: {name} runs on {ray.get(actor.node.remote())[1]}, pid {ray.get(actor.pid.remote())}", flush=True)

    def _drop(self, name: str) -> None:
        actor, group = self._running.pop(name)
        ray.kill(actor)
        remove_placement_group(group)

    def _died(self, name: str) -> str:
        """Why a worker must be started again; "" if it runs or has left."""
        try:
            code = ray.get(self._running[name][0].poll.remote())
        except ray.exceptions.RayError:
            return "its node or actor is gone"
        if code == 2:
            sys.exit(f"launch: {name} was refused: its command line is wrong")
        return f"exit status {code}" if code else ""

    def keep(self, wanted: int) -> None:
        for name in list(self._running):
            why = self._died(name)
            if why:
                print(f"launch: {name} is started again: {why}", file=sys.stderr, flush=True)
                self._drop(name)
        for i in range(wanted):
            if f"worker{i}" not in self._running:
                self._start(f"worker{i}")
        for name in [name for name in self._running if int(name.removeprefix("worker")) >= wanted]:
            ray.get(self._running[name][0].stop.remote())  # it hands its samples back
            if ray.get(self._running[name][0].poll.remote()) is not None:
                self._drop(name)

    def leave(self) -> None:
        deadline = time.monotonic() + LEAVE_S
        while time.monotonic() < deadline and None in ray.get([actor.poll.remote() for actor, _ in self._running.values()]):
            time.sleep(POLL_S)
        for name in list(self._running):
            self._drop(name)


def wanted_workers(path: pathlib.Path, recipe: int) -> int:
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text.isdecimal() else recipe


def supervise(trainer: Trainer, inputs: list[str], recipe_workers: int, bundle: dict) -> int:
    workers = None
    while (code := trainer.exit_code()) is None:
        if workers is None and recipe_workers > 0 and (addresses := trainer.addresses()):
            workers = Workers([*inputs, *addresses], trainer.keys, bundle)
        if workers is not None:
            workers.keep(wanted_workers(trainer.run_dir / "launch/workers", recipe_workers))
        time.sleep(POLL_S)
    if workers is not None:
        workers.leave()
    return code


def wait_for_save(trainer: Trainer) -> int:
    trainer.stop()
    while (code := trainer.exit_code()) is None:
        time.sleep(POLL_S)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default=None, help="of a running cluster; default: $RAY_ADDRESS, else one of this machine")
    parser.add_argument("--gpus-per-rank", type=float, default=0)
    parser.add_argument("--gpus-per-worker", type=float, default=0)
    parser.add_argument("--cpus-per-rank", type=float, default=1)
    parser.add_argument("--cpus-per-worker", type=float, default=1)
    options, words = parser.parse_known_args()
    inputs, run_dir = launch_plan.split_run_dir(words)
    inputs = [str(pathlib.Path(word).absolute()) if "=" not in word else word for word in inputs]
    sizes = launch_plan.sizes_of(inputs)
    ray.init(address=options.address, log_to_driver=True, runtime_env={"env_vars": {
        "PYTHONPATH": str(pathlib.Path(__file__).resolve().parent), "RINGSIDE": launch_plan.program()}})
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # after ray.init, which sets its own
    try:
        trainer = Trainer(inputs, run_dir, sizes.ranks, {"CPU": options.cpus_per_rank, "GPU": options.gpus_per_rank})
    except NoRoom as error:
        sys.exit(f"launch: {error}")
    try:
        return supervise(trainer, inputs, sizes.workers, {"CPU": options.cpus_per_worker, "GPU": options.gpus_per_worker})
    except (KeyboardInterrupt, SystemExit) as reason:
        print(f"launch: the trainer saves and stops: {reason}", file=sys.stderr, flush=True)
        return wait_for_save(trainer) or 1


if __name__ == "__main__":
    sys.exit(main())
