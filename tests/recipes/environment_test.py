"""The multi-turn environment of recipes/sorting_tools: what it makes of a conversation, and a run with it.

Guards: tool output that is learned; rewards for wrong answers; log-probs that are not those of the sampled tokens; an
example that has grown beyond what one can read at once.

Usage: environment_test.py RINGSIDE. Standard library only.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
FOLDER = ROOT / "recipes" / "sorting_tools"
sys.path[:0] = [str(FOLDER)]
import environment  # noqa: E402

DEADLINE_S = 200


class Scripted:
    """A session whose model says these things, and which notes what it was asked."""

    def __init__(self, prompt: str, said: list[str]):
        self.record, self.said, self.asked = {"prompt": prompt}, list(said), []

    def complete(self, text, max_tokens):
        self.asked.append(text)
        words = self.said.pop(0)
        ended = words.endswith(environment.EOS)
        return {"choices": [{"text": words.removesuffix(environment.EOS), "finish_reason": "stop" if ended else "length"}]}


def played(prompt: str, *said: str) -> tuple[dict, list[str]]:
    session = Scripted(prompt, said)
    return environment.play(session), session.asked


class Conversation(unittest.TestCase):
    def test_each_turn_continues_what_was_said(self):
        reward, asked = played("312>", "312;", "32;", "3;", "=123;")
        self.assertEqual(reward, {"sorted": 1.0})
        self.assertEqual(asked[-1], "312>312;1:32>32;2:3>3;3:>")

    def test_a_wrong_answer_a_cut_turn_and_no_answer_earn_nothing(self):
        for said in (["=12;"], ["=112"], ["112;"] * environment.MAX_TURNS):
            self.assertEqual(played("112>", *said)[0], {"sorted": 0.0}, said)

    def test_a_call_that_the_tool_does_not_understand_is_answered(self):
        self.assertEqual(played("12>", ":;", "=12;")[1][-1], "12>:;?>")

    def test_it_is_short(self):
        lines = (FOLDER / "environment.py").read_text().splitlines()
        self.assertLessEqual(sum(bool(line.strip()) for line in lines), 30)


class Live(unittest.TestCase):
    def run_program(self, *words):
        done = subprocess.run([RINGSIDE, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])

    def test_a_run_trains_on_its_conversations(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        data, run = pathlib.Path(folder.name) / "data", pathlib.Path(folder.name) / "run"
        subprocess.run([sys.executable, FOLDER / "make_data.py", "--out", data, "--demonstrations", "400"], check=True,
                       stdout=subprocess.DEVNULL)
        self.run_program("train", FOLDER / "sft.yaml", "--run-dir", f"{run}-sft", "--steps", "10", f"model.path={data}/model",
                         f"data.sft={data}/sft.jsonl")
        self.run_program("run", FOLDER / "grpo.yaml", "--run-dir", run, "train.steps=2",
                         f"model.path={run}-sft/checkpoint-final", f"data.train={data}/train.jsonl",
                         "rollout.prompts_per_step=2", "rollout.group_size=4", "log.rollouts=true")
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(len(steps), 2)
        for step in steps:
            self.assertIn("rewards/sorted/mean", step)
            self.assertGreaterEqual(step["num_turns/mean"], 1)
            # What the worker says of the tokens it sampled is what the trainer computes for them.
            self.assertLess(step["sampling/sampling_logp_difference/max"], 1e-4)
        for line in (run / "rollouts.jsonl").read_text().splitlines():
            self.assert_only_sampled_tokens_are_learned(json.loads(line))

    def assert_only_sampled_tokens_are_learned(self, rollout: dict):
        mask = rollout["loss_mask"]
        begins = [i for i, learned in enumerate(mask) if learned and (i == 0 or not mask[i - 1])]
        self.assertEqual(rollout["turn_offsets"], begins)
        for learned, logprob in zip(mask, rollout["logprobs"], strict=True):
            self.assertTrue(learned or logprob == 0.0)


if __name__ == "__main__":
    unittest.main()
