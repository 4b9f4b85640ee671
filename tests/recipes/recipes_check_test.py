"""Every recipe goes through `ringside check`, in the combinations that the documents name.

Where a model or data file is not here, a stand-in takes its place: the model's real config.json without weights, one line
of data (stand_in.py); the small tasks' data is made by their own make_data.py.

Usage: recipes_check_test.py RINGSIDE. Standard library only.
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
import recipe_commands  # noqa: E402
import stand_in  # noqa: E402


def check(*words) -> tuple[int, str]:
    # With --memory for the machine that a recipe is meant for, and not for this one.
    done = prestarted.run([RINGSIDE, "check", *map(str, words), "--memory", "80GiB"], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout


class Recipes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.data = stand_in.data(cls.folder)
        for shape in (ROOT / "configs/models").glob("*/config.json"):
            stand_in.model(cls.folder, shape.parent.name)
        cls.game = cls.folder / "game.py"  # for environments of packages that are not here
        cls.game.write_text("class Game:\n    def play(self, session):\n        return 0.0\n")
        for script in ROOT.glob("recipes/*/make_data.py"):
            few = ["--demonstrations", "50"] if (script.parent / "sft.yaml").exists() else []  # others have none
            subprocess.run([sys.executable, script, "--out", cls.folder / script.parent.name, *few],
                           check=True, stdout=subprocess.DEVNULL)

    def stand_ins(self, inputs: list[str]) -> list[str]:
        """Settings that replace the model and the data of a recipe by those made here."""
        texts = [(ROOT / word).read_text() for word in inputs if word.endswith(".yaml")]
        if any(word.startswith("recipes/environments/") for word in inputs):  # model and data are named by its run.sh
            supervised = "recipes/environments/sft.yaml" in inputs
            return [f"model.path={self.folder / 'Qwen3-0.6B'}", "model.init=random",
                    *([f"data.sft={self.data['data.sft']}"] if supervised else
                      [f"data.train={self.data['data.train']}", f"rollout.environment=python({self.game}:Game)",
                       "rollout.environment_options={}"])]
        model = self.last(r"^model:.*\bpath: ([^\s,}]+)", texts)
        task = pathlib.PurePath(model).parts[3] if "/runs/" in model else ""
        settings = ["model.init=random", f"model.path={self.folder / (f'{task}/model' if task else pathlib.PurePath(model).name)}"]
        for key in ("train", "eval", "sft", "preferences", "preferences_eval"):
            path = self.last(rf"\b{key}: (\.\./\S+?\.jsonl)", texts)
            if path and any("image_key:" in text for text in texts):
                settings.append(f"data.{key}={self.data['images']}")
            elif path:
                owner = pathlib.PurePath(path).parts[3] if "/runs/" in path else task  # of another recipe than the model
                made = self.folder / owner / pathlib.PurePath(path).name if task else self.data[f"data.{key}"]
                settings.append(f"data.{key}={made}")
        if any("distillation: {teacher: " in text for text in texts):
            settings.append(f"algorithm.distillation.teacher={settings[1].partition('=')[2]}")
        if any("reward: worker" in text for text in texts):  # `check` is about `run`, whose workers read prompts
            settings.append(f"data.train={self.folder / task / 'train.jsonl'}")
        return settings

    @staticmethod
    def last(pattern: str, texts: list[str]) -> str:
        found = [match for text in texts for match in re.findall(pattern, text, re.MULTILINE)]
        return found[-1] if found else ""

    def test_every_documented_run_passes_check(self):
        runs = recipe_commands.without_pretrained(recipe_commands.documented_runs())
        self.assertGreater(len(runs), 50, "runs found in the documents")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = pool.map(lambda run: check(*run[1], *self.stand_ins(run[1])), runs)
        for (place, inputs), (code, text) in zip(runs, results):
            with self.subTest(place=place, inputs=" ".join(inputs)):
                self.assertEqual(code, 0, text[-2000:])
                self.assertRegex(text, r"memory of (a rank|rank \d+ of the pipeline, which needs the most): about")

    def test_every_recipe_and_fragment_is_in_a_documented_run(self):
        used = {word for _, inputs in recipe_commands.documented_runs() for word in inputs}
        files = {str(path.relative_to(ROOT)) for pattern in ("recipes/*/*.yaml", "configs/*/*.yaml")
                 for path in ROOT.glob(pattern)}
        made_by_quickstart = {path for path in files if path.startswith(("recipes/quickstart", "recipes/vision/"))}
        self.assertEqual(files - made_by_quickstart - used, set())

    def test_a_wrong_recipe_does_not_pass(self):
        wrong = self.folder / "wrong.yaml"
        wrong.write_text("parallel: {ulysses_parallel_size: 128}\n")
        inputs = ["recipes/full_size/grpo.yaml", "configs/models/qwen3-8b.yaml", "configs/context/8k.yaml"]
        code, text = check(*inputs, wrong, *self.stand_ins(inputs))
        self.assertEqual(code, 2, text)
        self.assertIn("query heads", text)


if __name__ == "__main__":
    unittest.main()
