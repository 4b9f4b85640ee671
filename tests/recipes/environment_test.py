"""The multi-turn environment of recipes/sorting_tools: what it makes of a conversation, and a run with it.

Guards: tool output that is learned; rewards for wrong answers; log-probs that are not those of the sampled tokens; an
example that has grown beyond what one can read at once.

Usage: environment_test.py RINGSIDE, by the Python of .env/oracle.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
FOLDER = ROOT / "recipes" / "sorting_tools"
CLIENT = ROOT / "rollout_bridge" / "python"
sys.path[:0] = [str(FOLDER), str(CLIENT), str(ROOT / "tools")]
import environment  # noqa: E402
import quickstart_task  # noqa: E402
from ringside_bridge import Rollout  # noqa: E402

IDS = quickstart_task.vocabulary_of("0123456789>:=?")
DEADLINE_S = 100


def played(prompt: str, *said: str) -> Rollout:
    """The rollout of a conversation in which the model says these things; each log-prob is -0.5."""
    ids = [IDS[c] for c in prompt]
    rollout = Rollout("r", 1, 2, 0, ids, [], [], [], rewards={"sorted": 0.0}, loss_mask=[], turn_offsets=[])
    game = environment.play(rollout, prompt, IDS, 1.0)
    asked = next(game)
    for words in said:
        assert asked[0] == ids + rollout.completion_ids
        answer = {"completion_ids": [IDS[c] for c in words], "logprobs": [-0.5] * len(words), "finish_reason": "stop"}
        try:
            asked = game.send(answer)
        except StopIteration:
            break
    rollout.versions = [(0, 0, len(rollout.completion_ids))]
    rollout.validate()
    return rollout


def text(rollout: Rollout, learned: int) -> str:
    names = {number: token for token, number in IDS.items()}
    return "".join(names[i] for i, mask in zip(rollout.completion_ids, rollout.loss_mask) if mask == learned)


class Conversation(unittest.TestCase):
    def test_only_what_the_model_says_is_learned(self):
        rollout = played("312>", "312;", "32;", "3;", "=123;")
        self.assertEqual(text(rollout, 1), "312;32;3;=123;")
        self.assertEqual(text(rollout, 0), "1:32>2:3>3:>")
        self.assertEqual(rollout.turn_offsets, [0, 9, 16, 21])
        self.assertEqual([value for value, mask in zip(rollout.logprobs, rollout.loss_mask) if mask == 0], [0.0] * 12)
        self.assertEqual(rollout.rewards, {"sorted": 1.0})

    def test_a_wrong_answer_a_cut_turn_and_no_answer_earn_nothing(self):
        for said in (["=12;"], ["=112"], ["112;"] * environment.MAX_TURNS):
            self.assertEqual(played("112>", *said).rewards, {"sorted": 0.0}, said)

    def test_a_call_that_the_tool_does_not_understand_is_answered(self):
        self.assertEqual(text(played("12>", ":;", "=12;"), 0), "?>")

    def test_it_is_short(self):
        lines = (FOLDER / "environment.py").read_text().splitlines()
        self.assertLessEqual(sum(bool(line.strip()) for line in lines), 60)


class Live(unittest.TestCase):
    def exit_status(self, process: subprocess.Popen) -> int | None:
        """None: it still ran after the deadline. The assertion then shows the log, which TimeoutExpired would not."""
        try:
            return process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            return None

    def test_a_run_trains_on_its_conversations(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        data, run = pathlib.Path(folder.name) / "data", pathlib.Path(folder.name) / "run"
        subprocess.run([sys.executable, FOLDER / "make_data.py", "--out", data, "--demonstrations", "400"], check=True,
                       stdout=subprocess.DEVNULL)
        with open(pathlib.Path(folder.name) / "log", "w+") as log:
            subprocess.run([RINGSIDE, "train", FOLDER / "sft.yaml", "--run-dir", f"{run}-sft", "--steps", "10",
                            f"model.path={data}/model", f"data.sft={data}/sft.jsonl"], check=True, stdout=log, stderr=log)
            (data / "model/model.safetensors").write_bytes(
                (pathlib.Path(f"{run}-sft") / "checkpoint-final/model.safetensors").read_bytes())
            trainer = subprocess.Popen([RINGSIDE, "train", FOLDER / "grpo.yaml", "--run-dir", run, "train.steps=2",
                                        f"model.path={data}/model", "rollout.prompts_per_step=2", "rollout.group_size=4"],
                                       stdout=log, stderr=log)
            self.addCleanup(lambda: (trainer.kill(), trainer.wait()))
            endpoint, deadline = run / "bridge/endpoint.json", time.monotonic() + DEADLINE_S
            while not endpoint.exists():
                self.assertIsNone(trainer.poll(), pathlib.Path(log.name).read_text())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            worker = subprocess.Popen(
                [sys.executable, FOLDER / "environment.py", json.loads(endpoint.read_text())["rollout_address"], "tools0", data],
                env=os.environ | {"PYTHONPATH": str(CLIENT), "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
            self.addCleanup(lambda: (worker.kill(), worker.wait()))
            for process in (trainer, worker):
                self.assertEqual(self.exit_status(process), 0, pathlib.Path(log.name).read_text())
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(len(steps), 2)
        for step in steps:
            self.assertIn("rewards/sorted/mean", step)
            self.assertGreaterEqual(step["num_turns/mean"], 1)
            # What the worker says of the tokens it sampled is what the trainer computes for them.
            self.assertLess(step["sampling/sampling_logp_difference/max"], 1e-4)


if __name__ == "__main__":
    unittest.main()
