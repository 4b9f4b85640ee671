"""What a run shows while it runs and after: summary, samples, top, OpenMetrics, report, evaluation by hand.

Guards: a page that loads something over the network, embeds JSON that does not parse, or grows without bound; an OpenMetrics
answer that a scraper refuses; samples without texts or figures; an evaluation whose figures differ from those of its own
completions.

Usage: watch_test.py RINGSIDE. Standard library only.
"""

import html.parser
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
DEADLINE_S = 90


class Page(html.parser.HTMLParser):
    """The page's tags, the text of its scripts, and whatever could load something."""

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.links, self.scripts, self._script = [], [], {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.append(values.get("id"))
        self.links += [values[name] for name in ("src", "href", "srcset", "action", "data", "poster") if name in values]
        if tag in ("link", "iframe", "object", "embed", "img", "base"):
            self.links.append(f"<{tag}>")
        if tag == "script":
            self._script = values.get("type", "code")
            self.scripts[self._script] = ""

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] += data


def parse_openmetrics(text: str) -> dict[str, float]:
    """Refuses what the specification's grammar refuses, as far as gauges without labels go."""
    assert text.endswith("# EOF\n") and "\r" not in text, text[-20:]
    values, typed = {}, None
    for line in text[:-len("# EOF\n")].splitlines():
        if match := re.fullmatch(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) gauge", line):
            assert match[1] not in values, f"{match[1]} twice"
            typed = match[1]
            continue
        match = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*) ([+-]?(?:[0-9.]+(?:e[+-]?[0-9]+)?|Inf)|NaN)", line)
        assert match and match[1] == typed, line
        values[match[1]] = float(match[2])
    return values


class Watch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.data = cls.folder / "data"
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", cls.data, "--sft", "10", "--train", "50",
                        "--held-out", "12", "--test", "4"], check=True, stdout=subprocess.DEVNULL)
        cls.model = cls.data / "model"
        cls.run_dir = cls.folder / "run"
        cls.metrics_port = cls.free_port()
        words = [RINGSIDE, "run", "--run-dir", cls.run_dir, f"model.path={cls.model}", "model.init=random", f"data.train={cls.data / 'train.jsonl'}",
                 f"data.eval={cls.data / 'held_out.jsonl'}", "eval.every=4", "eval.samples=2", "eval.temperature=1", "rollout.reward=length",
                 "rollout.group_size=4", "rollout.prompts_per_step=2", "rollout.max_completion_tokens=12", "train.threads=1", "train.steps=60",
                 "optimizer.lr_schedule=linear", "log.rollouts=true", "log.samples_after=true", f"log.openmetrics=127.0.0.1:{cls.metrics_port}"]
        with open(cls.folder / "run.log", "w") as log:
            run = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log)
        try:
            cls.wait_for(lambda: cls.run_dir.joinpath("metrics.jsonl").exists() and len(cls.steps(cls.run_dir)) > 4)
            with urllib.request.urlopen(f"http://127.0.0.1:{cls.metrics_port}/metrics", timeout=10) as answer:
                cls.content_type, cls.exposed = answer.headers["Content-Type"], answer.read().decode()
            cls.followed = prestarted.run([RINGSIDE, "top", cls.run_dir], capture_output=True, text=True, timeout=DEADLINE_S)
            assert run.wait(DEADLINE_S) == 0, (cls.folder / "run.log").read_text()
        finally:
            run.kill()
            run.wait()
        cls.log = (cls.folder / "run.log").read_text()

    @staticmethod
    def free_port() -> int:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            return taken.getsockname()[1]

    @classmethod
    def wait_for(cls, true):
        deadline = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < deadline, (cls.folder / "run.log").read_text()
            time.sleep(0.02)

    @staticmethod
    def steps(run_dir) -> list[dict]:
        return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]

    def ringside(self, *words, code=0) -> subprocess.CompletedProcess:
        done = prestarted.run([str(word) for word in (RINGSIDE, *words)], capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def report(self, *words) -> tuple[str, Page, dict]:
        output = self.folder / "page.html"
        self.ringside("report", *words, "--output", output)
        text = output.read_text()
        page = Page(text)
        return text, page, json.loads(page.scripts["application/json"])

    def test_a_step_has_learning_rate_stages_and_workers(self):
        steps = self.steps(self.run_dir)
        self.assertEqual([line["step"] for line in steps], list(range(61)))
        rates = [line["learning_rate"] for line in steps[1:]]
        self.assertTrue(all(a > b > 0 for a, b in zip(rates, rates[1:])), rates)
        stages = ("wait_rollouts", "score", "train", "publish", "save", "evaluate", "samples")
        for line in steps[3:]:
            times = [line[f"time/{stage}"] for stage in stages]
            self.assertTrue(all(time >= 0 for time in times), line)
            self.assertLessEqual(sum(times), line["step_time"] * 1.001)
        self.assertTrue(any(line["bridge/workers"] == 1 for line in steps[1:]))

    def test_evaluations_are_told_also_before_training_and_with_pass_at_k(self):
        evaluated = [line for line in self.steps(self.run_dir) if "eval_reward" in line]
        self.assertEqual([line["step"] for line in evaluated], list(range(0, 61, 4)))
        for line in evaluated:
            self.assertLessEqual(line["eval/pass@1"], line["eval/pass@2"])
            self.assertIn("eval/length", line)
        self.assertRegex(self.log, r"evaluation before training: reward .*pass@2 ")
        self.assertRegex(self.log, r"evaluation after step 60: reward ")

    def test_the_end_tells_rewards_evaluations_and_where_the_time_went(self):
        self.assertRegex(self.log, r"reward [-0-9.]+ in the first 10 steps, [-0-9.]+ in the last 10\n")
        self.assertRegex(self.log, r"eval_reward .* at step 0, .* at step 60, best ")
        self.assertRegex(self.log, r"60 steps took .*: .*training [0-9]+ %")
        self.assertRegex(self.log, r"metrics: .*metrics.jsonl; as a page with samples: ringside report ")

    def test_samples_hold_texts_and_figures_of_each_token(self):
        samples = [json.loads(line) for line in (self.run_dir / "samples.jsonl").read_text().splitlines()]
        self.assertEqual([sample["step"] for sample in samples], [step for step in range(1, 61) for _ in range(2)])
        ratios = set()
        for worst, best in zip(samples[::2], samples[1::2]):
            self.assertLessEqual(worst["reward"], best["reward"])
            for sample in (worst, best):
                self.assertRegex(sample["prompt"], r"^\d{6}>$")
                self.assertEqual("".join(sample["tokens"]), sample["completion"])
                for name in ("old_logprobs", "new_logprobs", "advantages"):
                    self.assertEqual(len(sample[name]), sample["length"])
                # The trainer's own log-probs of the weights that sampled.
                for old, rollout in zip(sample["old_logprobs"], sample["logprobs"]):
                    self.assertAlmostEqual(old, rollout, delta=1e-3)
                ratios |= {round(new - old, 9) for new, old in zip(sample["new_logprobs"], sample["old_logprobs"])}
        self.assertGreater(len(ratios), 100)

    def test_logged_rollouts_have_texts_and_train_again(self):
        lines = [json.loads(line) for line in (self.run_dir / "rollouts.jsonl").read_text().splitlines()]
        self.assertEqual(len(lines), 60 * 8)
        self.assertRegex(lines[0]["prompt"], r"^\d{6}>$")
        sample = json.loads((self.run_dir / "samples.jsonl").read_text().splitlines()[0])
        logged, = [line for line in lines if all(line[name] == sample[name] for name in ("step", "group_id", "sample_index"))]
        self.assertEqual(logged["completion"], "".join(sample["tokens"]))
        again = self.folder / "again"
        self.ringside("train", "--run-dir", again, "--rollouts", self.run_dir / "rollouts.jsonl", f"model.path={self.model}",
                      "model.init=random", "rollout.group_size=4", "rollout.prompts_per_step=2", "rollout.max_completion_tokens=12",
                      "rollout.reward=length", "train.threads=1", "--steps", "3")
        for one, other in zip(self.steps(self.run_dir)[1:4], self.steps(again)):
            self.assertEqual(one["reward"], other["reward"])

    def test_top_follows_to_the_end_and_prints_each_step_once(self):
        self.assertEqual(self.followed.returncode, 0, self.followed.stderr)
        steps = [int(step) for step in re.findall(r"^step (\d+)/60  reward", self.followed.stderr, re.M)]
        self.assertEqual(steps, list(range(1, 61)))
        self.assertIn("finished: 60 steps", self.followed.stderr)
        self.assertRegex(self.ringside("top", self.run_dir, "--once").stdout, r"step 60/60")
        self.assertIn("is no directory", self.ringside("top", self.folder / "absent", code=2).stderr)

    def test_metrics_are_exposed_as_openmetrics(self):
        self.assertEqual(self.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        values = parse_openmetrics(self.exposed)
        line = next(line for line in self.steps(self.run_dir) if line["step"] == values["ringside_step"])
        self.assertEqual(values["ringside_reward"], line["reward"])
        self.assertEqual(values["ringside_completions_mean_length"], line["completions/mean_length"])
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            done = self.ringside("train", "--run-dir", self.folder / "taken", "--rollouts", self.run_dir / "rollouts.jsonl", f"model.path={self.model}",
                                 "model.init=random", "rollout.group_size=4", "rollout.prompts_per_step=2", "rollout.reward=length",
                                 f"log.openmetrics={address}", "--steps", "1", code=2)
        self.assertRegex(done.stderr, f"log.openmetrics.*{address}.*cannot be bound")

    def test_a_report_is_one_page_that_loads_nothing(self):
        text, page, data = self.report(self.run_dir)
        self.assertTrue(all(link.startswith("#") for link in page.links), page.links)
        self.assertEqual(re.findall(r"https?://[^\s\"']+|url\(|@import|fetch\(|XMLHttpRequest|import\(", re.sub(r"http://www\.w3\.org/2000/svg", "", text)), [])
        self.assertTrue({"curves", "time", "samples", "config", "warnings", "machines", "step", "worst"} <= set(page.ids))
        run, = data["runs"]
        steps = self.steps(self.run_dir)
        self.assertEqual(run["steps"], list(range(61)))
        self.assertEqual(len(run["samples"]), 60)
        self.assertEqual(run["state"], "finished: 60 of 60 steps done")
        self.assertEqual(sorted(name for name in run["series"] if name not in run["meanings"]), [])
        answers = {row["prompt"]: row["answer"] for row in map(json.loads, (self.data / "train.jsonl").read_text().splitlines())}
        for samples in run["samples"].values():
            for sample in samples:
                self.assertEqual(sample["answer"], answers[sample["prompt"]])
        for name in ("reward", "loss", "learning_rate", "eval_reward", "tokens_per_s"):
            self.assertEqual(len(run["series"][name]), 61)
        self.assertAlmostEqual(run["series"]["reward"][60], steps[60]["reward"], delta=1e-3)
        self.assertAlmostEqual(sum(stage["share"] for stage in run["stages"]), 1, delta=1e-3)
        sample = run["samples"]["60"][0]
        self.assertEqual(len(sample["tokens"]), len(sample["r"]))
        start, = run["starts"]
        self.assertTrue({"host", "cpu", "cores", "versions", "device", "ranks"} <= set(start))
        changed = {row["key"]: row["values"] for row in data["config_keys"]}
        self.assertEqual(changed["rollout.reward"], ["exact_match", "length"])
        self.assertNotIn("rollout.temperature", changed)
        self.assertLess(len(text), 500_000)

    def test_two_runs_are_compared_and_hostile_texts_stay_texts(self):
        other = self.folder / "other" / "run"
        shutil.copytree(self.run_dir, other)
        samples = (other / "samples.jsonl").read_text().splitlines()
        first = json.loads(samples[0])
        first["prompt"] = "</script><script>alert(1)</script><!--"
        samples[0] = json.dumps(first)
        (other / "samples.jsonl").write_text("\n".join(samples) + "\n")
        config = (other / "config.yaml").read_text()
        (other / "config.yaml").write_text(config.replace("group_size: 4", "group_size: 16", 1))
        text, page, data = self.report(self.run_dir, other)
        self.assertEqual(set(page.scripts), {"application/json", "code"})
        self.assertEqual(data["runs"][1]["samples"]["1"][0]["prompt"], first["prompt"])
        self.assertNotIn("<script>alert", text)
        self.assertEqual([row for row in data["config_keys"]], [{"key": "rollout.group_size", "values": ["4", "16"]}])
        self.assertEqual([run["name"] for run in data["runs"]], [f"{self.folder.name}/run", "other/run"])

    def test_a_long_run_with_long_samples_stays_below_two_megabytes(self):
        long = self.folder / "long"
        long.mkdir()
        line = self.steps(self.run_dir)[-1]
        sample = json.loads((self.run_dir / "samples.jsonl").read_text().splitlines()[-1])
        with open(long / "metrics.jsonl", "w") as metrics, open(long / "samples.jsonl", "w") as samples:
            for step in range(1, 3001):
                metrics.write(json.dumps(line | {"step": step, "reward": step / 3000 + 0.1 * (step % 7)}) + "\n")
                if step <= 200:
                    many = {name: [value * (1 + 0.001 * i) for i in range(2000)] for name, value in
                            (("logprobs", -1.1), ("old_logprobs", -1.2), ("new_logprobs", -1.3), ("advantages", 0.7))}
                    if step == 200:  # scored once
                        del many["new_logprobs"], sample["new_logprobs"]
                    samples.write(json.dumps(sample | many | {"step": step, "tokens": ["word "] * 2000, "length": 2000}) + "\n")
        text, _, data = self.report(long)
        self.assertLess(len(text), 2_000_000)
        self.assertLessEqual(len(data["runs"][0]["steps"]), 1000)
        samples = data["runs"][0]["samples"]
        self.assertEqual(len(samples), 200)
        self.assertIsNone(samples["200"][0]["r"])
        self.assertAlmostEqual(samples["199"][0]["r"][0], math.exp(-0.1), delta=1e-3)
        self.assertIn("has no metrics.jsonl", self.ringside("report", self.data, "--output", self.folder / "x.html", code=2).stderr)

    def test_an_evaluation_by_hand_gives_the_figures_of_its_completions(self):
        model = self.run_dir / "checkpoint-final"
        output = self.folder / "completions.jsonl"
        words = ["eval", model, self.data / "held_out.jsonl", "--output", output, "rollout.reward=length", "rollout.max_completion_tokens=12",
                 "eval.samples=4", "eval.temperature=1", "eval.max_prompts=10", "train.threads=1"]
        done = self.ringside(*words)
        summary = json.loads(done.stdout)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        self.assertEqual(len(lines), 40)
        means = [sum(line["reward"] for line in lines[i:i + 4]) / 4 for i in range(0, 40, 4)]
        mean = sum(means) / 10
        error = (sum((value - mean) ** 2 for value in means) / 9 / 10) ** 0.5
        self.assertAlmostEqual(summary["reward"]["mean"], mean, delta=1e-9)
        self.assertAlmostEqual(summary["reward"]["high"] - mean, 1.959964 * error, delta=1e-6)
        self.assertTrue({"pass@1", "pass@2", "pass@4", "length", "truncated"} <= set(summary))
        self.assertRegex(done.stderr, r"95 % interval over 10 prompts")
        self.assertEqual(self.ringside(*words).stdout, done.stdout)
        # Without a length of its own a completion is as long as the model's positions allow.
        unset = self.ringside("eval", model, self.data / "held_out.jsonl", "rollout.reward=length", "eval.max_prompts=2")
        positions = json.loads((model / "config.json").read_text())["max_position_embeddings"]
        found = re.search(r"rollout.max_completion_tokens: (\d+), what the model's positions leave", unset.stderr)
        self.assertTrue(0 < int(found.group(1)) < positions, unset.stderr)
        greedy = self.ringside(*words[:3], "eval.samples=2", "rollout.reward=length", code=2)
        self.assertIn("eval.samples: is 2, but eval.temperature 0 samples greedily", greedy.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
