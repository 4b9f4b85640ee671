"""Starts the trainer's ranks with torchrun, and the rollout workers beside rank 0.

Usage: torchrun.py RECIPE ... [key=value ...] --run-dir DIR [--nnodes N --node-rank R --rendezvous HOST:PORT]

One machine needs no more than the recipe. On several, run the same line on each with its own --node-rank; HOST is the first.
The run directory must then be on a file system that all of them share. Workers run on the first machine. `torchrun` is
taken from $PATH, or from .env/oracle. Standard library only.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import launch_plan

AS_RANK = "--as-rank"  # first word of this script where torchrun starts it for a rank of several machines


def torchrun() -> str:
    found = shutil.which("torchrun") or str(launch_plan.ROOT / ".env/oracle/bin/torchrun")
    if not pathlib.Path(found).exists():
        sys.exit("launch: no torchrun on $PATH; it comes with Python's torch")
    return found


class Worker(threading.Thread):
    """Keeps one `ringside rollout` running until it exits with 0, or with 2: its command line is wrong."""

    def __init__(self, words: list[str]):
        super().__init__(daemon=True)
        self._words, self._leaving, self._process = words, threading.Event(), None
        self.start()

    def run(self) -> None:
        while not self._leaving.is_set():
            self._process = subprocess.Popen(self._words)
            code = self._process.wait()
            if code in (0, 2) or self._leaving.wait(1):
                return
            print(f"launch: a worker ended with {code}; it is started again", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """After the trainer: a worker leaves by itself when the run has ended."""
        self.join(10)
        self._leaving.set()
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def become_rank(run_dir: str, host: str, *words: str) -> None:
    """Replaces this process by a rank. torchrun decides late which machine has rank 0, the one that workers connect to."""
    settings = []
    if os.environ["RANK"] == "0":
        settings = launch_plan.trainer_settings(pathlib.Path(run_dir) / "keys", launch_plan.address_towards(host))
    os.execv(words[0], [*words, *settings])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--rendezvous", default="")
    options, words = parser.parse_known_args()
    inputs, run_dir = launch_plan.split_run_dir(words)
    sizes = launch_plan.sizes_of(inputs)
    if sizes.ranks % options.nnodes or (options.nnodes > 1 and ":" not in options.rendezvous):
        sys.exit(f"launch: {sizes.ranks} ranks on {options.nnodes} machines; expected a divisor, and --rendezvous HOST:PORT")
    group, wrapper, worker_words = ["--standalone"], [], []
    if options.nnodes > 1:
        host = options.rendezvous.rpartition(":")[0]
        if options.node_rank == 0:
            worker_words = launch_plan.worker_settings(launch_plan.make_keys(run_dir))
        wrapper = [sys.executable, __file__, AS_RANK, str(run_dir), host]
        group = ["--nnodes", str(options.nnodes), "--rdzv-backend", "c10d", "--rdzv-id", run_dir.name, "--rdzv-endpoint",
                 options.rendezvous, "--rdzv-conf", f"is_host={int(options.node_rank == 0)}"]
    run = ["--run-dir", str(run_dir)]
    (run_dir / "bridge/endpoint.json").unlink(missing_ok=True)  # of an earlier run: its ports are closed
    workers = [Worker([launch_plan.program(), "rollout", *inputs, *worker_words, *run, "--worker-id", f"worker{i}"])
               for i in range(sizes.workers if options.node_rank == 0 else 0)]
    trainer = subprocess.Popen([torchrun(), *group, "--nproc-per-node", str(sizes.ranks // options.nnodes), "--no-python",
                                *wrapper, launch_plan.program(), "train", *inputs, *run],
                               env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})
    try:
        code = trainer.wait()
    except KeyboardInterrupt:  # torchrun got it too, and lets the ranks save
        code = trainer.wait()
    for worker in workers:
        worker.stop()
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == [AS_RANK]:
        become_rank(*sys.argv[2:])
    sys.exit(main())
