"""A small quickstart: its data and model, and a folder for each test. Standard library only."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class QuickstartCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.data = pathlib.Path(folder.name)
        subprocess.run([sys.executable, ROOT / "tools/quickstart_task.py", "--out", cls.data, "--sft", "8", "--train", "64",
                        "--held-out", "8", "--test", "8"], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "run"

    def recipe(self, *words) -> list[str]:
        """The recipe on one rank with two groups of four, and keys of a test."""
        keys = ["model.init=random", f"model.path={self.data / 'model'}", f"data.train={self.data / 'train.jsonl'}",
                "rollout.prompts_per_step=2", "rollout.group_size=4", "parallel.ulysses_parallel_size=1", "train.threads=1",
                "eval.every=0"]
        return [str(word) for word in (ROOT / "recipes/quickstart/grpo.yaml", *keys, *words)]

    def lines(self, name: str) -> list[dict]:
        """Of a file of the run directory; none before there is one."""
        path = self.run_dir / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
