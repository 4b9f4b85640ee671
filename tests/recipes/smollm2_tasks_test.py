"""The tasks on the pretrained model: their data, rewards and reward model, and `ringside check` of their recipes.

The model is a stand-in (stand_in.py), and so is reasoning-gym, which the test environment does not have: lists of words and a
verifier for them behind the two functions that the recipe calls.

Usage: smollm2_tasks_test.py RINGSIDE. Needs numpy.
"""
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes/smollm2"
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import recipe_commands  # noqa: E402
import stand_in  # noqa: E402

REASONING_GYM = '''
import random


class Dataset:
    def __init__(self, name, size, seed, min_words=2, max_words=4):
        rng = random.Random(seed)
        self.entries = []
        for _ in range(size):
            words = ["".join(rng.choices("abcdefgh", k=4)) for _ in range(rng.randint(min_words, max_words))]
            self.entries.append({"question": "Reverse lists.\\n\\nQuestion: Reverse this list of words: " + ", ".join(words) + "\\n",
                                 "answer": ", ".join(reversed(words)), "metadata": {"source_dataset": name}})

    def __iter__(self):
        return iter(self.entries)

    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.01


def create_dataset(name, **settings):
    return Dataset(name, **settings)
'''
RIGHT = {  # of each kind of instruction about an apple, with five words
    "words": "This apple is very red.", "capitals": "APPLES ARE SO RED.", "question": "Is this red apple very sweet?",
    "json": '{"name": "apple", "use": "It is eaten."}', "list": "pie, juice, tree",
}
GOOD = "I am sorry that your lamp has a scratch, and we will replace it."
BAD = "It is your own fault, so buy another one."


def module(path: pathlib.Path):
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def lines_of(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def asked(url: str, completion: str) -> float:
    """The served model's reward, as soon as it is there."""
    prompt = '<|im_start|>user\nA customer writes: "My lamp has a scratch." Write a reply of one sentence.<|im_end|>\n'
    body = json.dumps({"prompt": prompt, "completion": completion}).encode()
    for _ in range(200):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
                return json.load(answer)["reward"]
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


class Tasks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        (cls.folder / "reasoning_gym.py").write_text(REASONING_GYM)
        sys.path.insert(0, str(cls.folder))
        cls.environment = os.environ | {"PYTHONPATH": str(cls.folder)}
        cls.tasks = sorted(path.parent.name for path in RECIPES.glob("*/grpo.yaml"))
        for task in cls.tasks:
            subprocess.run([sys.executable, RECIPES / task / "make_data.py", "--out", cls.folder / task], check=True,
                           env=cls.environment, stdout=subprocess.DEVNULL)
        cls.model = stand_in.model(cls.folder, "Qwen3-0.6B")

    def test_no_prompt_is_in_two_files(self):
        self.assertEqual(self.tasks, ["instructions", "preference", "reverse_words"])
        for task in self.tasks:
            with self.subTest(task=task):
                parts = [{json.dumps(line["prompt"]) for line in lines_of(self.folder / task / f"{name}.jsonl")}
                         for name in ("train", "held_out", "test")]
                self.assertTrue(all(len(part) >= 30 for part in parts))
                self.assertEqual(len(set.union(*parts)), sum(map(len, parts)))

    def test_right_answers_score_one_and_others_less(self):
        checked = module(RECIPES / "instructions/checks.py").checked
        kinds = {line["kind"] for line in lines_of(self.folder / "instructions/train.jsonl")}
        self.assertEqual(kinds, set(RIGHT))
        for kind, text in RIGHT.items():
            with self.subTest(kind=kind):
                self.assertEqual(checked([text], [kind], ["apple"], [5], [False]), [1.0])
                self.assertLess(checked([text], [kind], ["apple"], [5], [True])[0], 1.0)
                others = [other for name, other in RIGHT.items() if name != kind]
                self.assertLess(max(checked(others, [kind] * 4, ["apple"] * 4, [5] * 4, [False] * 4)), 1.0)
        verify = module(RECIPES / "reverse_words/verify.py").verify
        lines = lines_of(self.folder / "reverse_words/test.jsonl")[:20]
        entries = [line["entry"] for line in lines]
        self.assertEqual(verify([f" {line['answer']}\n" for line in lines], entries), [1.0] * 20)
        self.assertLess(max(verify(["no"] * 20, entries)), 0.5)
        judged = module(RECIPES / "preference/judge.py").judged
        self.assertEqual(judged([GOOD, GOOD], ["lamp"] * 2, [False, True]), [1.0, 0.0])
        self.assertLess(judged([BAD], ["lamp"], [False])[0], 0.5)

    def test_the_reward_model_learns_the_pairs_and_recipes_pass_check(self):
        script, weights = RECIPES / "preference/reward_model.py", self.folder / "reward_model.npz"
        text = subprocess.run([sys.executable, script, "train", self.folder / "preference/pairs.jsonl", weights], check=True,
                              capture_output=True, text=True).stdout
        # One label in ten is the wrong way round.
        self.assertGreater(float(text.split("; ")[1].split(" %")[0]), 75.0, text)
        port = free_port()
        server = subprocess.Popen([sys.executable, script, "serve", weights, str(port)], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            self.assertGreater(asked(f"http://127.0.0.1:{port}", GOOD), asked(f"http://127.0.0.1:{port}", BAD) + 0.3)
            self.check_recipes(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait()

    def check_recipes(self, url: str):
        # Alone, and merged with what README.md runs them with.
        runs = [[recipe] for recipe in sorted(RECIPES.glob("*/*.yaml"))]
        more = [inputs for place, inputs in recipe_commands.documented_runs() if place == "recipes/smollm2/README.md"]
        self.assertGreaterEqual(len(more), 2)
        for recipe, *rest in runs + [[ROOT / inputs[0], *inputs[1:]] for inputs in more]:
            task = self.folder / recipe.parent.name
            words = ["model.init=random", f"model.path={self.model}", "data.chat_template=chatml"]
            if recipe.stem == "sft":
                words.append(f"data.sft={task}/sft.jsonl")
            else:
                # The stand-in's tokens are characters.
                words += [f"data.train={task}/train.jsonl", f"data.eval={task}/held_out.jsonl", "rollout.max_prompt_tokens=400"]
            if recipe.parent.name == "preference" and recipe.stem == "grpo":
                words.append(f"rollout.reward_options.http_url={url}")
            elif recipe.stem == "grpo":
                words.append(f"rollout.reward_options.python_command={sys.executable}")
            done = subprocess.run([RINGSIDE, "check", recipe, *rest, *words, "--memory", "80GiB"], cwd=ROOT, env=self.environment,
                                  capture_output=True, text=True, timeout=120)
            with self.subTest(recipe=str(recipe.relative_to(ROOT)), more=rest):
                self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-2000:])
                self.assertIn("memory of a rank: about", done.stdout)


if __name__ == "__main__":
    unittest.main()
