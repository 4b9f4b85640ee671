"""Environments of a run: what one is asked and told in each session, its rewards, its records, and its mistakes.

Guards: a tool's answer that the model does not see; a reward that is not the sum of its turns'; a game that never ends; a
mistake in an environment that is found when the run has started.

Usage: environment_play_test.py RINGSIDE. Standard library only.
"""

import json
import pathlib
import subprocess
import sys
import unittest

import quickstart_case

RINGSIDE = sys.argv.pop(1)
DEADLINE_S = 120
sys.path.insert(0, str(quickstart_case.ROOT / "recipes/environments"))
import demonstrations  # noqa: E402  its tiny model

GAME = """
import asyncio
import json
import pathlib

class Game:
    tools = None

    def __init__(self, turns=2, by_name=False, log=None, hangs=None):
        self.turns, self.by_name, self.log, self.hangs, self.seen = turns, by_name, log, hangs, []

    def records(self, count, seed):
        for i in range(5):
            yield {"prompt": f"game {seed + i}", "level": i}

    def reset(self, record):
        self.record = record
        return [{"role": "user", "content": record["prompt"]}]

    async def step(self, message):
        self.seen.append(message["role"])
        if self.hangs and not pathlib.Path(self.hangs).exists():
            pathlib.Path(self.hangs).touch()
            await asyncio.sleep(3600)
        done = len(self.seen) == self.turns
        reward = {"turns": 1, "level": self.record["level"]} if self.by_name else 0.5
        if done and self.log:
            pathlib.Path(self.log).open("a").write("done\\n")
        return [{"role": "user", "content": f"turn {len(self.seen)}"}], reward, done

    def close(self):
        if self.log:
            pathlib.Path(self.log).open("a").write("closed\\n")
"""


class Environment(quickstart_case.QuickstartCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        demonstrations.write_model(cls.data / "chat")
        (cls.data / "games.jsonl").write_text("".join(json.dumps({"prompt": f"game {i}", "level": i % 3}) + "\n" for i in range(8)))

    def setUp(self):
        super().setUp()
        self.game = self.folder / "game.py"
        self.game.write_text(GAME)

    def ringside(self, name: str, *words, options: dict = {}) -> subprocess.CompletedProcess:
        settings = self.recipe("data.eval=", "rollout.reward=worker", "rollout.num_workers=1", "log.rollouts=true", "train.steps=2",
                               "rollout.max_completion_tokens=4", "rollout.max_prompt_tokens=64", "data.chat_template=chatml",
                               f"model.path={self.data / 'chat'}", f"data.train={self.data / 'games.jsonl'}",
                               f"rollout.environment=python({self.game}:Game)",
                               "rollout.environment_options=" + json.dumps(options))
        return subprocess.run([RINGSIDE, name, *settings, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE_S,
                              check=False)

    def rollouts_of(self, *words, options: dict) -> list[dict]:
        done = self.ringside("run", "--run-dir", self.run_dir, *words, options=options)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        return self.lines("rollouts.jsonl")

    def text(self, ids: list[int]) -> str:
        words = {i: token for token, i in json.loads((self.data / "chat/tokenizer.json").read_text())["model"]["vocab"].items()}
        return "".join(words[i] for i in ids)

    def test_a_step_is_trained_without_a_game_that_never_ends(self):
        rollouts = self.rollouts_of("rollout.straggler_timeout_s=3", options={"turns": 1, "hangs": str(self.folder / "hangs")})
        metrics = self.lines("metrics.jsonl")
        self.assertEqual([m["rollouts/stragglers"] for m in metrics if "rollouts/stragglers" in m], [1, 1])
        self.assertEqual(len(rollouts), 16)
        missing = [rollout for rollout in rollouts if not rollout["completion_ids"]]
        self.assertEqual([rollout["finish_reason"] for rollout in missing], ["error"])

    def test_the_turns_of_a_session_are_one_rollout_with_the_rewards_of_each(self):
        log = self.folder / "log"
        rollouts = self.rollouts_of(options={"turns": 2, "log": str(log)})
        self.assertEqual(len(rollouts), 16)
        for rollout in rollouts:
            self.assertRegex(self.text(rollout["prompt_ids"]), r"^<\|im_start\|>user\ngame \d<\|im_end\|>\n<\|im_start\|>assistant\n$")
            self.assertIn("<|im_start|>user\nturn 1<|im_end|>\n", self.text(rollout["completion_ids"]))
            self.assertNotIn("turn 2", self.text(rollout["completion_ids"]))
            self.assertEqual(len(rollout["turn_offsets"]), 2)
            self.assertEqual(rollout["turn_rewards"], [0.5, 0.0])
            self.assertEqual(dict(rollout["rewards"]), {"reward": 0.5})
        notes = log.read_text().splitlines()  # a sample in flight at the end may be played too
        self.assertGreaterEqual(notes.count("done"), 16)
        self.assertGreaterEqual(notes.count("closed"), 16)

    def test_rewards_by_name_are_summed_and_a_game_ends_at_max_turns(self):
        for rollout in self.rollouts_of("rollout.harness_options.max_turns=3", options={"turns": 100, "by_name": True}):
            level = int(self.text(rollout["prompt_ids"]).split("game ")[1][0]) % 3
            self.assertEqual(dict(rollout["rewards"]), {"turns": 3.0, "level": 3.0 * level})
            self.assertEqual(len(rollout["turn_offsets"]), 3)

    def test_an_evaluation_sums_the_rewards_of_the_turns(self):
        self.rollouts_of(f"data.eval={self.data / 'games.jsonl'}", "eval.every=1", "eval.by=workers", "train.steps=1",
                         options={"turns": 2})
        self.assertEqual([step["eval_reward"] for step in self.lines("metrics.jsonl")], [1.0, 1.0])

    def test_records_are_what_the_environment_makes(self):
        out = self.folder / "made.jsonl"
        done = self.ringside("records", "--count", 7, "--seed", 3, "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("5 records", done.stdout)
        records = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual(records[4], {"prompt": "game 7", "level": 4})
        done = self.ringside("records", "--count", 2, "--out", out)
        self.assertEqual(len(out.read_text().splitlines()), 2, done.stderr)
        done = self.ringside("records", "--out", out, "rollout.environment=", "rollout.environment_options=")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no rollout.environment", done.stderr)

    def test_a_mistake_is_named_before_the_run(self):
        for text, options, problem in (
                ("class Game(\n", {}, r"game\.py:1: SyntaxError"),
                ("class Other:\n    pass\n", {}, r"game\.py has no class Game"),
                (GAME, {"size": 3}, r"TypeError.*size"),
                ("class Game:\n    def reset(self, record):\n        return []\n", {}, r"Game has no step; expected reset"),
                ("class Game:\n    def __init__(self):\n        raise ValueError('no board')\n", {},
                 r"game\.py:3: in __init__: ValueError: no board")):
            self.game.write_text(text)
            done = self.ringside("check", options=options)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertRegex(done.stdout + done.stderr, "rollout.environment.*" + problem)
        done = self.ringside("check", "rollout.environment=reasoning_gym(chain_sum)",
                             "rollout.harness_options.python_command=python3 -S -E")  # without packages
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertRegex(done.stdout + done.stderr, r"rollout.environment.*reasoning_gym\.py:\d+: .*No module named 'reasoning_gym'")

    def test_an_exception_of_a_step_costs_its_sample_alone(self):
        marker = self.folder / "failed"
        self.game.write_text(GAME.replace("        self.seen.append", f"""        if not pathlib.Path({str(marker)!r}).exists():
            pathlib.Path({str(marker)!r}).touch()
            raise ValueError("the board broke")
        self.seen.append"""))
        rollouts = self.rollouts_of("rollout.harness_options.concurrency=1", options={"turns": 1})
        self.assertEqual(len(rollouts), 16)
        self.assertEqual(sum(rollout["attempt"] for rollout in rollouts), 1)
        self.assertRegex((self.run_dir / "run.log").read_text(), r"game\.py:\d+: in step: ValueError: the board broke")


if __name__ == "__main__":
    unittest.main()
