"""Follows the metrics of a Ringside run: RUN_DIR/metrics.jsonl, one JSON object per step."""

import json
import math
import os
import pathlib
import time
from collections.abc import Iterator

__all__ = ["follow", "read_config", "trainer_at_work"]

NO_METRICS = ("step", "updates", "non_finite")


def trainer_at_work(run_dir: os.PathLike | str) -> bool:
    """Whether the process that RUN_DIR/trainer.pid names is alive on this machine."""
    try:
        os.kill(int((pathlib.Path(run_dir) / "trainer.pid").read_text()), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def read_config(run_dir: os.PathLike | str) -> dict:
    """The run's configuration; {} without config.yaml or PyYAML."""
    try:
        import yaml
        return yaml.safe_load((pathlib.Path(run_dir) / "config.yaml").read_text()) or {}
    except (ImportError, OSError):
        return {}


def follow(run_dir: os.PathLike | str, once: bool = False, poll_s: float = 1.0) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields (step, metrics) of each step, with finite numbers only, as they are written.

    Ends when no trainer works in the directory, or with `once` at the end of the file. A resumed run replaces the file; its
    lines are then read from the beginning, but steps that were yielded with the same metrics before are not repeated.
    Raises ValueError naming the line when a complete line is not a JSON object with an integer "step".
    """
    path = pathlib.Path(run_dir) / "metrics.jsonl"
    seen: dict[int, str] = {}
    inode, offset = None, 0
    while True:
        at_work = not once and trainer_at_work(run_dir)  # asked before the last read
        try:
            with open(path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != inode or found.st_size < offset:
                    inode, offset = found.st_ino, 0
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # still being written
                    offset += len(line)
                    text = line.decode()
                    step, metrics = _parse(text, path)
                    if seen.get(step) != text:
                        seen[step] = text
                        yield step, metrics
        except FileNotFoundError:
            pass
        if not at_work:
            return
        time.sleep(poll_s)


def _parse(text: str, path: pathlib.Path) -> tuple[int, dict[str, float]]:
    try:
        values = json.loads(text)
        step = values["step"]
        if not isinstance(step, int):
            raise TypeError
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{path}: expected JSON objects with an integer \"step\", found {text[:80]!r}") from None
    return step, {name: float(value) for name, value in values.items()
                  if name not in NO_METRICS and isinstance(value, (int, float)) and math.isfinite(value)}
