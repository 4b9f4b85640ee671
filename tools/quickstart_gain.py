"""Says what a quickstart run gained, and whether its rollouts were what they claimed to be.

Usage: quickstart_gain.py RUN WANTED_POINTS. Reads RUN/{sft,grpo}/test.json (what `ringside generate`
printed) and RUN/grpo/metrics.jsonl. Exits 1 when the gain is below WANTED_POINTS percentage points, or
when a rollout's log-probs differ by more than 1e-4 from the trainer's at the version it names.
"""

import json
import pathlib
import sys

LOGPROB_BOUND = 1e-4


def exact_match(summary: pathlib.Path) -> float:
    return 100 * json.loads(summary.read_text())["mean"]


def main() -> int:
    run, wanted = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    before, after = (exact_match(run / stage / "test.json") for stage in ("sft", "grpo"))
    steps = [json.loads(line) for line in (run / "grpo/metrics.jsonl").read_text().splitlines()]
    difference = max(step["sampling/sampling_logp_difference/max"] for step in steps)
    gain = after - before
    print(
        f"rollout log-probs against the trainer's at the stated version: at most {difference:.1e} apart "
        f"(bound {LOGPROB_BOUND:.0e})"
    )
    print(
        f"exact match on the test set: {before:.1f} % before, {after:.1f} % after {len(steps)} steps of GRPO "
        f"({gain:+.1f} points; at least {wanted:+.1f} wanted)"
    )
    return 0 if gain >= wanted and difference <= LOGPROB_BOUND else 1


sys.exit(main())
