"""The data of the page of `ringside report`, from run directories written here, and the check of the page.

Guards: a spike that averaging hides; a page that does not say whether the run finished; samples without the expected answer; steps
that trained on nothing; metrics without a meaning; a check of the page that works for long runs only.

Usage: report_test.py RINGSIDE. Standard library only; the browser of tools/check_report.py is used by hand.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import check_report  # noqa: E402
import prestarted  # noqa: E402

SAMPLE = {"logged_in_term": 1, "group_id": 3, "sample_index": 0, "reward": 0.0, "rewards": [["math_answer", 0.0]], "finish_reason": "stop", "version": 0,
          "prompt": "8 * 9 =", "completion": "71", "length": 1, "tokens": ["71"], "logprobs": [-0.5]}


def lines_of(values: list[dict]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_dir(self, name: str, metrics: list[dict], **files: list[dict]) -> pathlib.Path:
        """A run directory with metrics.jsonl, and other .jsonl files by name."""
        made = self.folder / name
        made.mkdir()
        for file, values in {"metrics": metrics, **files}.items():
            (made / f"{file}.jsonl").write_text(lines_of(values))
        return made

    def pages(self, *runs: pathlib.Path) -> list[dict]:
        output = self.folder / "page.html"
        prestarted.run([RINGSIDE, "report", *map(str, runs), "--output", str(output)], check=True, capture_output=True, timeout=60)
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', output.read_text(), re.DOTALL)
        return json.loads(found.group(1))["runs"]

    def page(self, *values, **files) -> dict:
        return self.pages(self.run_dir(f"run{len(list(self.folder.iterdir()))}", *values, **files))[0]

    def test_a_spike_in_a_long_run_is_the_highest_of_its_point(self):
        steps = [{"step": step, "grad_norm": 1e6 if step == 7001 else 1.0, "reward": 0.5} for step in range(1, 20_001)]
        page = self.page(steps)
        at = max(i for i, step in enumerate(page["steps"]) if step <= 7001)
        self.assertEqual(page["averaged"], 50)
        self.assertEqual(page["high"]["grad_norm"][at], 1e6)
        self.assertEqual(page["low"]["grad_norm"], 1)
        self.assertAlmostEqual(page["series"]["grad_norm"][at], (1e6 + 49) / 50, delta=1)
        self.assertEqual(page["low"]["reward"], page["high"]["reward"])

    def test_a_run_of_a_thousand_steps_is_shown_step_by_step(self):
        page = self.page([{"step": step, "reward": step / 10} for step in range(1, 1001)])
        self.assertEqual((page["averaged"], len(page["steps"]), page["low"], page["high"]), (1, 1000, {}, {}))

    def test_the_state_of_a_run_is_told(self):
        steps = [{"step": step, "reward": 0.5, "step_time": 2.0} for step in range(1, 33)]
        starts = [{"time": "2026-01-31T12:00:00Z", "step": 0, "steps": 400}, {"time": "2026-01-31T13:30:00Z", "step": 20, "steps": 400}]
        stopped = {"time": "2026-01-31T12:40:00Z", "start": 1, "how": "stopped", "reason": "SIGINT"}

        def ended(how, reason=""):
            return {"time": "2026-01-31T14:00:00Z", "start": 2, "how": how, "reason": reason}
        for how, state, failed in (
                ([stopped, ended("finished")], "finished: 32 of 400 steps done", False),
                ([stopped, ended("stopped", "SIGTERM")], "stopped by SIGTERM after 32 of 400 steps", False),
                ([stopped, ended("failed", "no space")], "failed after 32 of 400 steps: no space", True),
                ([stopped], "cut off after 32 of 400 steps: the trainer was killed, or the machine went down", True)):
            page = self.page(steps, starts=starts, ends=how)
            self.assertEqual((page["state"], page["failed"]), (state, failed))
        self.assertEqual(page["times"], "started 2026-01-31 12:00 UTC, for the last of 2 times 13:30 UTC; 1:04 of training")
        page = self.page(steps, starts=starts, ends=[stopped, ended("finished")])
        self.assertEqual(page["times"], "started 2026-01-31 12:00 UTC, for the last of 2 times 13:30 UTC, ended 14:00 UTC; 1:04 of training")
        working = self.run_dir("working", steps, starts=starts, ends=[stopped])
        (working / "trainer.pid").write_text(f"{os.getpid()}\n")
        self.assertEqual(self.pages(working)[0]["state"], "training: 32 of 400 steps done")
        self.assertEqual(self.page(steps)["state"], "32 steps done")

    def test_a_sample_has_the_expected_answer(self):
        page = self.page([{"step": 1, "reward": 0.0}], samples=[SAMPLE | {"step": 1, "answer": "72"}, SAMPLE | {"step": 1, "answer": None}, SAMPLE | {"step": 1}])
        self.assertEqual([sample["answer"] for sample in page["samples"]["1"]], ["72", None, None])

    def test_a_sample_has_its_images_and_the_page_may_show_them(self):
        images = [{"name": "<a>.png", "uri": "data:image/jpeg;base64,AA=="}]
        run = self.run_dir("pictured", [{"step": 1, "reward": 0.0}], samples=[SAMPLE | {"step": 1, "images": images}, SAMPLE | {"step": 1}])
        first, second = self.pages(run)[0]["samples"]["1"]
        self.assertEqual(first["images"], images)
        self.assertNotIn("images", second)
        self.assertIn("img-src data:;", (self.folder / "page.html").read_text())

    def test_steps_without_scores_and_lost_workers_are_warnings(self):
        lost = [0, 1, 1, 3, 0, 1]  # the last two after a new start of the trainer
        steps = [{"step": i + 1, "reward": 0.0, "response/aborted_ratio": 0.25 if i in (2, 3) else 0.0, "bridge/lost_workers": count,
                  "alarm/zero_reward": float(i == 5)} for i, count in enumerate(lost)]
        self.assertEqual(self.page(steps)["warnings"], [
            "alarm/zero_reward was raised in 1 step, first in 6, last in 6",
            "response/aborted_ratio: samples failed or had no score in 2 steps, first in 3, last in 4, at most 25 % of a step",
            "bridge/lost_workers: workers were lost 4 times in 3 steps, first in 2, last in 6"])
        self.assertEqual(self.page([{"step": 1, "response/aborted_ratio": 0.0}])["warnings"], [])

    def test_a_metric_has_a_meaning(self):
        names = ["reward", "rewards/math_answer/mean", "rewards/length/std", "eval/hard/pass@4", "eval/reward_ci95", "time/train", "clip_ratio/low_mean",
                 "bridge/lost_workers", "rollout_corr/ppl_ratio", "rollout_corr/chi2_seq", "sampling/sampling_logp_difference/max", "tokens_per_s"]
        meanings = self.page([dict.fromkeys(names, 1.0) | {"step": 1, "num_tokens": 5, "step_time": 1.0, "of/nobody": 1.0}])["meanings"]
        self.assertEqual(sorted(set(names) - set(meanings)), [])
        self.assertNotIn("of/nobody", meanings)
        self.assertEqual(meanings["bridge/lost_workers"].split(",")[0], "Workers whose connection was lost since the trainer started")


class Check(unittest.TestCase):
    def test_without_a_step_one_of_the_run_is_looked_for(self):
        self.assertEqual(check_report.step_to_find([1, 2, 3, 4], None), 4)
        self.assertEqual(check_report.step_to_find([1], None), 1)
        self.assertEqual(check_report.step_to_find(list(range(1, 201)), None), 151)
        self.assertIsNone(check_report.step_to_find([], None))

    def test_a_step_without_samples_is_the_nearest_with_some(self):
        self.assertEqual(check_report.step_to_find([10, 20, 30], 150), 30)
        self.assertEqual(check_report.step_to_find([10, 20, 30], 19), 20)

    def test_a_click_is_inside_the_picture_and_as_exact_as_the_screen(self):
        self.assertEqual(check_report.share_of_width(7, 7, 7), 46 / 320)
        self.assertEqual(check_report.share_of_width(20, 0, 20), (320 - 14) / 320)
        self.assertLess(check_report.steps_a_click(0, 60, 320), 1)
        self.assertAlmostEqual(check_report.steps_a_click(0, 20_000, 320), 2 * 20_000 / 260)


if __name__ == "__main__":
    unittest.main(verbosity=2)
