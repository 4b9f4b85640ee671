"""The environments of packages beside the packages themselves: a few steps of each recipe, then every recorded rollout is
played again by the package alone.

Guards: a reward that is not the package's for what was sampled; an environment that told the model something else; an empty
answer that is sampled again.

Usage: environments.py [NAME ...], with RINGSIDE naming the program, by a Python that has the packages of
tools/requirements-environments.txt. tools/test_environments.sh runs it.
"""

import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs/environments"
sys.path.insert(0, str(ROOT / "recipes/environments"))


class Turns:
    """The conversation of a rollout, out of its tokens."""

    def __init__(self, name: str, rollout: dict):
        words = json.loads((RUNS / name / "model/tokenizer.json").read_text())["model"]["vocab"]
        token_of = {i: token for token, i in words.items()}
        text = "".join(token_of[i] for i in rollout["prompt_ids"] + rollout["completion_ids"])
        parts = re.findall(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n?|$)", text, re.DOTALL)
        self.said = [content for role, content in parts if role == "assistant"]
        self.told = [content for role, content in parts if role == "user"]
        self.reward = sum(dict(rollout["rewards"]).values()) + sum(rollout.get("turn_rewards") or [])


def play_reasoning_gym(turns: Turns, record: dict) -> None:
    import reasoning_gym

    dataset = reasoning_gym.create_dataset("chain_sum", seed=record["seed"], size=record["size"], max_terms=2, max_digits=1)
    entry = dataset[record["index"]]
    assert turns.told == [entry["question"]], turns.told
    assert turns.reward == dataset.score_answer(turns.said[0].strip(), entry), (turns.said, entry["answer"], turns.reward)


def play_verifiers(turns: Turns, record: dict) -> None:
    import reverse_digits

    assert turns.told == [record["prompt"][0]["content"]], turns.told
    right = reverse_digits.same_places([{"content": turns.said[0]}], record["answer"])
    assert abs(turns.reward - right) < 1e-6, (turns.said, record["answer"], turns.reward)


def play_textarena(turns: Turns, record: dict) -> None:
    import textarena

    game = textarena.make("GuessTheNumber-v0-raw", max_turns=4)
    game.reset(num_players=1, seed=record["seed"])
    done = False
    for i, move in enumerate(turns.said):
        assert not done, turns.said
        told = [text for _, text, kind in game.get_observation()[1] if kind.name != "PLAYER_ACTION"]
        assert turns.told[i] == "\n".join(told), (turns.told[i], told)
        done, _ = game.step(move if "[" in move or "]" in move else f"[{move.strip()}]")
    rewards, _ = game.close()
    assert done and abs(turns.reward - rewards[0]) < 1e-6, (turns.said, rewards, turns.reward)


def play_openenv(turns: Turns, record: dict) -> None:
    from openenv_server import SmallestFirst, Take

    game = SmallestFirst()
    seen, total = game.reset(seed=record["seed"]), 0.0
    for i, move in enumerate(turns.said):
        assert not seen.done and turns.told[i] == seen.digits, (turns.told, seen)
        seen = game.step(Take(digit=move))
        total += seen.reward
    assert seen.done and abs(turns.reward - total) < 1e-6, (turns.said, total, turns.reward)


class SaysNothing(http.server.BaseHTTPRequestHandler):
    """A server of OpenAI's chat completions whose every answer is empty."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}
        body = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def check_empty_answer_of_verifiers() -> None:
    """The package counts it as an error, but the policy sampled it: it is worth what the rubric says."""
    import demonstrations

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SaysNothing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = demonstrations.connector("verifiers", "reverse_digits")
    record = next(iter(environment.records(1, seed=1)))
    reward = environment.play(types.SimpleNamespace(
        record=record, base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", model="policy"))
    server.shutdown()
    assert reward == 0.0, reward


PLAYS = {"reasoning_gym": play_reasoning_gym, "textarena": play_textarena, "openenv": play_openenv, "verifiers": play_verifiers}


def check(name: str) -> None:
    folder = RUNS / name
    shutil.rmtree(folder / "grpo", ignore_errors=True)
    subprocess.run([ROOT / "recipes/environments/run.sh", name, "train.steps=3", "rollout.prompts_per_step=8",
                    "eval.every=0", "log.rollouts=true", "data.shuffle=false"], check=True,
                   env=os.environ | {"PYTHON": sys.executable}, cwd=ROOT)
    records = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    rollouts = [json.loads(line) for line in (folder / "grpo/rollouts.jsonl").read_text().splitlines()]
    assert len(rollouts) == 3 * 64, len(rollouts)
    total = 0.0
    for rollout in rollouts:
        turns = Turns(name, rollout)
        total += turns.reward
        PLAYS[name](turns, records[rollout["group_id"] % len(records)])
    assert 0 < total < len(rollouts), total
    print(f"{name}: {len(rollouts)} rollouts have the rewards that the package gives, {total / len(rollouts):.2f} on average")


if __name__ == "__main__":
    if "verifiers" in (sys.argv[1:] or PLAYS):
        check_empty_answer_of_verifiers()
    for chosen in sys.argv[1:] or PLAYS:
        check(chosen)
