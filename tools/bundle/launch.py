"""Command `ringside` of the wheel: starts the program with the libraries of the torch beside it."""
import importlib.util
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def start(name: str) -> None:
    """Replaces this process by the program. Exits with 2 and a sentence if it cannot start."""
    launcher, program = HERE / "bin" / "with-torch", HERE / "libexec" / name
    if not os.access(program, os.X_OK):
        what = f"{program} cannot be executed; install the wheel with pip or uv" if program.exists() else f"this wheel has no {name}"
        print(f"ringside: {what}", file=sys.stderr)
        sys.exit(2)
    environment = dict(os.environ)
    torch = importlib.util.find_spec("torch")  # not imported
    if torch and torch.submodule_search_locations and "RINGSIDE_TORCH" not in environment:
        environment["RINGSIDE_TORCH"] = next(iter(torch.submodule_search_locations))
    # python3 of rewards and chat templates is this environment's, with its packages.
    here = os.path.dirname(sys.executable)
    if os.path.exists(os.path.join(here, "python3")):
        environment["PATH"] = here + os.pathsep + environment.get("PATH", os.defpath)
    os.execve("/bin/sh", ["sh", str(launcher), str(program), *sys.argv[1:]], environment)


def main() -> None:
    start("ringside")


def main_cuda() -> None:
    start("ringside_cuda")
