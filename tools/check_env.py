"""Says whether this Python environment holds every package of a requirements file, whole.

Usage: PYTHON check_env.py REQUIREMENTS. Exits 0 when each pinned version is there and every file
its installer recorded still has the recorded size; otherwise prints the first thing that is wrong
and exits 1. An installation that was interrupted fails here: its package has no record of files, or
files that are absent or cut short.
"""

import importlib.metadata
import pathlib
import sys


def problem_with(pin: str) -> str | None:
    name, _, version = pin.partition("==")
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed"
    if found.version != version:
        return f"{name} is {found.version}, expected {version}"
    if found.files is None:
        return f"{name} has no record of its files"
    for file in found.files:
        if file.suffix == ".pyc":
            continue  # byte code comes and goes with the interpreter
        path = file.locate()
        if not path.exists():
            return f"{name} lacks {file}"
        if file.size is not None and path.stat().st_size != file.size:
            return f"{name}: {file} has {path.stat().st_size} bytes, expected {file.size}"
    return None


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
        pin = line.partition("#")[0].strip()
        problem = problem_with(pin) if pin else None
        if problem:
            print(problem)
            return 1
    return 0


sys.exit(main())
