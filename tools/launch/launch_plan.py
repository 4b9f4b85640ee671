"""What launchers derive from a recipe, so that nobody types it: how many ranks and workers, keys, settings of addresses.

As a program, for shell scripts:
    launch_plan.py sizes RECIPE [key=value ...]    prints "RANKS WORKERS"
    launch_plan.py trainer RUN_DIR HOST            makes the run's keys; prints the trainer's settings for workers elsewhere
    launch_plan.py worker RUN_DIR                  prints the settings of such a worker
The program `ringside` is build/ringside of this checkout, or $RINGSIDE. Standard library only.
"""
import os
import pathlib
import re
import socket
import subprocess
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]


def program() -> str:
    return os.environ.get("RINGSIDE", str(ROOT / "build" / "ringside"))


@dataclass
class Sizes:
    ranks: int
    workers: int  # 0 for supervised fine-tuning


def sizes_of(inputs: list[str]) -> Sizes:
    """Asks `ringside check`, so a recipe with mistakes ends here, with their list."""
    done = subprocess.run([program(), "check", *inputs], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    ranks = re.search(r"^ranks: .*= (\d+) ranks?$", done.stdout, re.MULTILINE)
    if ranks is None:
        sys.exit("launch: `ringside check` printed no line of ranks")
    workers = re.search(r"^rollout\.num_workers: (\d+)", done.stdout, re.MULTILINE)
    samples = not re.search(r"^algorithm\.task: sft\b", done.stdout, re.MULTILINE)
    return Sizes(int(ranks.group(1)), (int(workers.group(1)) if workers else 1) if samples else 0)


def make_keys(run_dir: pathlib.Path) -> pathlib.Path:
    """RUN_DIR/keys with a pair for the trainer and one for all workers, made once."""
    keys = run_dir / "keys"
    if not (keys / "allowed").exists():
        keys.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("trainer", "worker"):
            subprocess.run([program(), "keygen", "--out", str(keys), "--name", name], check=True, stdout=subprocess.DEVNULL)
        (keys / "allowed").write_bytes((keys / "worker.pub").read_bytes())
    return keys


def trainer_settings(keys: pathlib.Path, host: str) -> list[str]:
    """Binds free ports of `host`, an address of this machine; RUN_DIR/bridge/endpoint.json then has their numbers."""
    return [f"bridge.rollout_address=tcp://{host}:0", f"bridge.weights_address=tcp://{host}:0",
            f"bridge.curve.trainer_secret={keys}/trainer.key", f"bridge.curve.allowed_workers={keys}/allowed"]


def worker_settings(keys: pathlib.Path) -> list[str]:
    return [f"bridge.curve.worker_secret={keys}/worker.key", f"bridge.curve.trainer_public={keys}/trainer.pub"]


def address_towards(host: str) -> str:
    """The address of this machine that `host` would see."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return probe.getsockname()[0]


def split_run_dir(words: list[str]) -> tuple[list[str], pathlib.Path]:
    """Recipes and settings, and the value of --run-dir."""
    if words.count("--run-dir") != 1 or words.index("--run-dir") + 1 == len(words):
        sys.exit("launch: expected RECIPE ... --run-dir DIR")
    at = words.index("--run-dir")
    return words[:at] + words[at + 2:], pathlib.Path(words[at + 1]).absolute()


def main() -> None:
    what, *words = sys.argv[1:] or [""]
    if what == "sizes" and words:
        sizes = sizes_of(words)
        print(sizes.ranks, sizes.workers)
    elif what == "trainer" and len(words) == 2:
        host = socket.gethostbyname(words[1])
        print(*trainer_settings(make_keys(pathlib.Path(words[0]).absolute()), host), sep="\n")
    elif what == "worker" and len(words) == 1:
        print(*worker_settings(pathlib.Path(words[0]).absolute() / "keys"), sep="\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
