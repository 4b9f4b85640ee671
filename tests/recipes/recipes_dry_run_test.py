"""Every recipe takes two steps as a dry run: the same algorithm, layout and adapters with a small model.

Runs that differ only in what a dry run leaves out (the server, the length of the context, the size of a model of one
family) count as one.

Usage: recipes_dry_run_test.py RINGSIDE. Standard library only.
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
import recipe_commands  # noqa: E402


def kind_of(inputs: list[str]) -> tuple:
    """What of a run a dry run keeps: the task's files, the family of the model, the layout."""
    kept = [word for word in inputs if not word.startswith(("configs/servers/", "configs/context/"))]
    return tuple(re.sub(r"configs/models/(qwen3|llama).*", r"\1", word) for word in kept)


def dry_run(inputs: list[str]) -> tuple[int, str, float]:
    started = time.monotonic()
    done = prestarted.run([RINGSIDE, "run", *inputs, "--dry-run"], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.returncode, done.stdout, time.monotonic() - started


class DryRuns(unittest.TestCase):
    def test_every_kind_of_recipe_takes_two_steps(self):
        runs = recipe_commands.without_pretrained(recipe_commands.documented_runs())
        kinds = {kind_of(inputs): inputs for _, inputs in reversed(runs)}
        self.assertGreater(len(kinds), 40, "kinds of runs found in the documents")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = pool.map(dry_run, kinds.values())
        for inputs, (code, text, seconds) in zip(kinds.values(), results):
            print(f"{seconds:5.1f} s  {' '.join(inputs)}", flush=True)
            with self.subTest(inputs=" ".join(inputs)):
                self.assertEqual(code, 0, text[-3000:])
                self.assertIn("dry run passed: 2 steps", text)


if __name__ == "__main__":
    unittest.main()
