"""A recipe with its model and data in a folder, and what `ringside` says of it: the set-up of preflight*_test.py.

Standard library only.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests/tools"))
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
import quickstart_task  # noqa: E402
from tiny_weights import shapes_of, write_weights  # noqa: E402

PROMPTS = [{"prompt": f"{digits}>", "answer": "".join(sorted(digits))} for digits in ("312", "231", "213", "132")]
HEADS, POSITIONS = 4, 64
# None of these may reach a user.
LIBRARY_TEXT = ("[json.exception", "frame #", "Exception raised from", "terminate called")


def model_config() -> dict:
    return {**quickstart_task.model_config(), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": HEADS, "head_dim": 8, "max_position_embeddings": POSITIONS}


class PreflightCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model"
        self.model.mkdir()
        self.config = model_config()
        self.write(self.model / "config.json", self.config)
        self.write(self.model / "tokenizer.json", quickstart_task.tokenizer_json())
        write_weights(self.model / "model.safetensors", shapes_of(self.config))
        self.lines("train.jsonl", PROMPTS)
        self.lines("sft.jsonl", [{"prompt": "31>", "completion": "13;"}] * 4)
        self.recipe = self.folder / "recipe.yaml"
        self.recipe.write_text("model: {path: model}\ndata: {train: train.jsonl}\n"
                               "rollout: {prompts_per_step: 2, group_size: 2, max_prompt_tokens: 16,\n"
                               "          max_completion_tokens: 4}\ntrain: {steps: 1, threads: 1}\n")
        self.sft = ("algorithm.task=sft", f"data.sft={self.folder}/sft.jsonl", "train.batch_size=2")

    def write(self, path: pathlib.Path, value) -> pathlib.Path:
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def lines(self, name: str, lines: list) -> pathlib.Path:
        return self.write(self.folder / name,
                          "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))

    def ringside(self, *words, seconds: float = 60) -> tuple[int, str]:
        done = prestarted.run([RINGSIDE, *(str(word) for word in words)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=seconds, cwd=self.folder)
        text = done.stdout.decode(errors="replace")
        for unwanted in LIBRARY_TEXT:
            self.assertNotIn(unwanted, text)
        return done.returncode, text

    def refused(self, *words, expect: tuple = (), command: str = "check"):
        """`command` ends with exit code 2 and a text that holds everything in `expect`."""
        end = () if command == "check" else ("--run-dir", self.folder / "run")
        code, text = self.ringside(command, self.recipe, *words, *end)
        self.assertEqual(code, 2, text)
        for part in expect:
            self.assertIn(part, text)
        return text

    def accepted(self, *words) -> str:
        code, text = self.ringside("check", self.recipe, *words)
        self.assertEqual(code, 0, text)
        return text
