"""Prints the exact match before and after a run, from its metrics.jsonl.

Usage: quickstart_gain.py METRICS WANTED_POINTS. Exits 1 when the gain is below WANTED_POINTS
percentage points, 2 when the file lacks an evaluation before the first step or after the last.
"""

import json
import pathlib
import sys


def main() -> int:
    metrics, wanted = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    scores = {line["step"]: 100 * line["eval_reward"] for line in lines if "eval_reward" in line}
    last = max(line["step"] for line in lines)
    if 0 not in scores or last not in scores or last == 0:
        print(
            f"quickstart: {metrics} has evaluations at steps {sorted(scores)}, "
            f"expected 0 and {last}",
            file=sys.stderr,
        )
        return 2
    gain = scores[last] - scores[0]
    print(
        f"exact match on the test set: {scores[0]:.1f} % before, {scores[last]:.1f} % after {last} "
        f"steps "
        f"({gain:+.1f} points; at least {wanted:+.1f} expected)"
    )
    return 0 if gain >= wanted else 1


sys.exit(main())
