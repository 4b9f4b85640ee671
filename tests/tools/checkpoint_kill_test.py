"""A run that is killed (SIGKILL) in the middle of saves, 20 times, and goes on each time.

Guards: a checkpoint that appears before all of its parts are on disk, a start that takes an interrupted save for a
checkpoint, and leftovers of interrupted saves that pile up. Kills are aimed at saves: they come a random moment after a
temporary directory has appeared. After a kill the next start must go on from the newest checkpoint, whose hashes it checks;
now and then all checkpoints that are there must be whole (`ringside export` checks sizes, hashes and tensors). The run's
final weights must be those of a run without kills, to the bit.

Usage: checkpoint_kill_test.py RINGSIDE [SEED]. Standard library only.
"""

import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv[1]
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 7
GOLDENS = ROOT / "tests/goldens/regression"
KILLS, STEPS, DEADLINE_S = 20, 200, 60


def command(run_dir: pathlib.Path, *words: str) -> list[str]:
    return [str(word) for word in (
        RINGSIDE, "train", "--run-dir", run_dir, "--rollouts", GOLDENS / "plain.jsonl", f"model.path={GOLDENS / 'policy'}",
        "rollout.group_size=4", "rollout.prompts_per_step=2", "rollout.max_completion_tokens=12", "train.threads=1",
        "parallel.ulysses_parallel_size=2", "checkpoint.every=1", "checkpoint.keep=3", "optimizer.learning_rate=1e-3", *words)]


def complete(run_dir: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in (run_dir / "checkpoints").glob("step-??????") if path.is_dir())


def unfinished(run_dir: pathlib.Path) -> list[pathlib.Path]:
    """Directories of saves; not of older checkpoints that are being removed."""
    return [path for path in (run_dir / "checkpoints").glob("*.tmp-*") if not path.name.endswith("removed")]


def kill_in_a_save(run_dir: pathlib.Path, chooser: random.Random, log) -> None:
    """Starts the run, waits for saves of this start and kills it a random moment into one of them."""
    before = {path.name for path in complete(run_dir) + unfinished(run_dir)}
    process = subprocess.Popen(command(run_dir, f"train.steps={STEPS}"), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE_S
        saves = chooser.randrange(1, 4)

        def new(paths: list[pathlib.Path]) -> int:
            return len({path.name for path in paths} - before)

        while new(complete(run_dir)) < saves - 1 or not new(unfinished(run_dir)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the run ended with {process.poll()} before it could be killed")
        time.sleep(chooser.random() * 0.03)
    finally:
        process.kill()
        process.wait()


def check_all_whole(run_dir: pathlib.Path, scratch: pathlib.Path) -> None:
    for checkpoint in complete(run_dir):
        shutil.rmtree(scratch, ignore_errors=True)
        done = prestarted.run([RINGSIDE, "export", checkpoint, scratch], capture_output=True, text=True)
        assert done.returncode == 0, f"{checkpoint} is not whole: {done.stderr}"


def main() -> None:
    chooser = random.Random(SEED)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run_dir, log_path, in_saves, resumed = folder / "run", folder / "log.txt", 0, 0
        for kill in range(KILLS):
            expected = complete(run_dir)[-1:]
            with open(log_path, "w") as log:
                kill_in_a_save(run_dir, chooser, log)
            text = log_path.read_text()
            time.sleep(0.05)  # the ranks die after their parent
            in_saves += bool(unfinished(run_dir))
            assert len(unfinished(run_dir)) <= 1, unfinished(run_dir)
            if kill % 5 == 0:  # otherwise the next start checks the newest
                check_all_whole(run_dir, folder / "scratch")
            if expected:
                assert re.search(rf"resuming from \S*{expected[0].name} at ", text), f"kill {kill}: {text}"
                resumed += 1
        assert in_saves >= KILLS // 4, f"only {in_saves} of {KILLS} kills came during a save"
        assert resumed >= KILLS - 3, f"only {resumed} of {KILLS} starts went on from a checkpoint"
        last = int(complete(run_dir)[-1].name[5:])
        steps = f"train.steps={last + 2}"
        for directory in (run_dir, folder / "whole"):
            done = prestarted.run(command(directory, steps), capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        assert not list((run_dir / "checkpoints").glob("*.tmp-*"))
        weights = [(directory / "checkpoint-final/model.safetensors").read_bytes() for directory in (run_dir, folder / "whole")]
        assert weights[0] == weights[1], "the killed run has other weights"
        print(f"{KILLS} kills, {in_saves} of them during a save; {last + 2} steps, the same weights")


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} s")
