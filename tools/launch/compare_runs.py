"""Says whether two runs trained alike: every figure of metrics.jsonl equal to the last digit, and the same final weights.

Times, and counts of messages and bytes, are left out: they differ between two runs of the same command.

Usage: compare_runs.py [--workers-differ] RUN_DIR RUN_DIR ...   exits 1 at a difference. Standard library only.
    --workers-differ   the runs had different numbers of workers at some time: the figures of the workers' own log-probs are
                       left out too. What else is in a worker's batch changes their last digits. The trainer computes its own.
"""
import argparse
import hashlib
import json
import pathlib
import sys

LEFT_OUT = ("time/", "step_time", "bridge/", "weights/", "rollouts/")
OF_WORKERS_LOGPROBS = ("sampling/", "rollout_corr/", "token_mult_prob_error")


def figures_of(run_dir: pathlib.Path, left_out: tuple[str, ...]) -> list[dict]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not name.startswith(left_out)} for line in lines]


def weights_of(run_dir: pathlib.Path) -> str:
    files = sorted((run_dir / "checkpoint-final").glob("*.safetensors"))
    if not files:
        sys.exit(f"{run_dir}: no weights in checkpoint-final")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def differences(a: list[dict], b: list[dict]) -> list[str]:
    found = [f"{len(a)} steps and {len(b)} steps"] if len(a) != len(b) else []
    for one, two in zip(a, b):
        found += [f"step {one['step']}: {name} is {one.get(name)} and {two.get(name)}"
                  for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers-differ", action="store_true")
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN_DIR")
    options = parser.parse_args()
    first, *others = options.runs
    left_out = LEFT_OUT + (OF_WORKERS_LOGPROBS if options.workers_differ else ())
    expected, failed = figures_of(first, left_out), False
    for other in others:
        found = differences(expected, figures_of(other, left_out))
        if weights_of(first) != weights_of(other):
            found.append("the final weights differ")
        for line in found[:20]:
            print(f"{other}: {line}")
        if not found:
            print(f"{other}: as {first}: {len(expected)} steps of {len(expected[0])} figures, and the weights")
        failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
