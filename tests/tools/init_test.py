"""What `ringside init` asks and writes.

Guards: a recipe that `check` refuses; an answer that is taken though it cannot be used; a file that is overwritten; a task,
a field name or a chat template that does not suit the data.

Usage: init_test.py RINGSIDE. Standard library only.
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


class Init(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model"
        self.model.mkdir()
        config = {**quickstart_task.model_config(), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
                  "head_dim": 8}
        tokenizer = quickstart_task.tokenizer_json()
        ids = tokenizer["model"]["vocab"]
        for id_, token in ((46, "<|im_start|>"), (47, "<|im_end|>")):  # in place of two characters
            ids.pop(next(name for name, value in ids.items() if value == id_))
            ids[token] = id_
            tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": id_, "content": token})
        (self.model / "config.json").write_text(json.dumps(config))
        (self.model / "tokenizer.json").write_text(json.dumps(tokenizer))
        write_weights(self.model / "model.safetensors", shapes_of(config))
        self.recipe = self.folder / "recipe.yaml"

    def data(self, *lines: dict) -> pathlib.Path:
        path = self.folder / "data.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def ringside(self, *words, answers: str = "") -> tuple[int, str]:
        done = prestarted.run([RINGSIDE, *map(str, words)], input=answers.encode(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, cwd=self.folder, check=False)
        return done.returncode, done.stdout.decode()

    def written(self, *words, answers: str = "") -> tuple[str, str]:
        """The recipe, which passes `check`, and the output."""
        code, text = self.ringside("init", *words, answers=answers)
        self.assertEqual(code, 0, text)
        self.assertEqual(self.ringside("check", self.recipe)[0], 0, text)
        return self.recipe.read_text(), text

    def test_options_answer_everything(self):
        data = self.data({"question": "1>", "solution": "12"})
        recipe, text = self.written("--yes", "--model", self.model, "--data", data)
        for part in ('reward: "math_answer"', 'prompt_key: "question"', 'answer_key: "solution"', "max_prompt_tokens: 64",
                     "max_completion_tokens: 192"):  # of 256 positions
            self.assertIn(part, recipe)
        self.assertNotIn("parallel:", recipe)
        self.assertIn("ringside run recipe.yaml --run-dir runs/recipe", text)
        self.assertIn("plain text", text)
        self.assertIn('path: "model"', recipe)  # below the recipe's folder: the folder can be moved
        self.assertIn('train: "data.jsonl"', recipe)

    def test_the_commands_that_are_printed_work_as_they_are(self):
        data = self.data({"prompt": "1>", "answer": "12"})
        _, text = self.written("--yes", "--model", self.model, "--data", data)
        command = next(line.strip() for line in text.splitlines() if " check recipe.yaml" in line)
        done = subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, (command, done.stderr))

    def template(self, text: str):
        (self.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": text}))

    def test_the_template_of_the_model_is_taken_where_it_has_one(self):
        # It has a system message of its own, which chatml would leave out.
        self.template("11{% for m in messages %}{{ m.content }}{% endfor %}>")
        data = self.data({"prompt": [{"role": "user", "content": "12"}], "answer": "B"})
        recipe, _ = self.written("--yes", "--model", self.model, "--data", data)
        self.assertIn("chat_template: model", recipe)
        self.assertIn('the first prompt is "1112>"', self.ringside("check", self.recipe)[1])

    def test_text_prompts_become_messages_of_a_user_if_the_model_has_a_template(self):
        self.template("{% for m in messages %}{{ m.content[:2] }}{% endfor %}>")
        data = self.data({"question": "12", "answer": "so 1 + 1 = 2\n#### 2"}, {"question": "13", "answer": "#### 4"})
        recipe, text = self.written("--yes", "--model", self.model, "--data", data)
        for part in ("text_prompts: user", "chat_template: model", 'reward: "math_answer"', "boxed"):
            self.assertIn(part, recipe)
        self.assertNotIn("plain text", text)

    def test_a_json_array_and_parquet_are_looked_into(self):
        path = self.folder / "data.json"
        path.write_text(json.dumps([{"problem": "1>", "reward_model": {"ground_truth": "B"}}] * 2))
        recipe, _ = self.written("--yes", "--model", self.model, "--data", path)
        for part in ('prompt_key: "problem"', 'answer_key: "reward_model.ground_truth"', 'reward: "multiple_choice"'):
            self.assertIn(part, recipe)

    def test_a_recipe_that_check_refuses_is_not_written(self):
        tokenizer = json.loads((self.model / "tokenizer.json").read_text())
        plain = json.dumps(tokenizer).replace("<|im_start|>", "<|a|>").replace("<|im_end|>", "<|b|>")
        chat, lists = {"prompt": [{"role": "user", "content": "1>"}], "answer": "B"}, {"prompt": "1>", "answer": [1, 2]}
        for line, text, words, expected in ((chat, plain, (), "has no chat template"),
                                            (lists, json.dumps(tokenizer), ("--task", "math_answer"), "is an array")):
            with self.subTest(expected):
                (self.model / "tokenizer.json").write_text(text)
                code, said = self.ringside("init", "--yes", "--model", self.model, "--data", self.data(line), *words)
                self.assertEqual(code, 2, said)
                self.assertIn(expected, said)
                self.assertFalse(self.recipe.exists())

    def test_five_questions_are_asked_and_wrong_answers_are_asked_again(self):
        data = self.data({"prompt": [{"role": "user", "content": "1>"}], "answer": "B"})
        recipe, text = self.written(answers=f"/nowhere\n{self.model}\n{data}\nexact_mach\n\n4\nmine\n")
        for part in ("1/5", "2/5", "3/5", "4/5", "5/5", "no config.json", "reward 'exact_mach' is unknown", "[multiple_choice]",
                     "--run-dir mine"):
            self.assertIn(part, text)
        for part in ("chat_template: chatml", "data_parallel_shard_size: 4", "dtype: bfloat16", "multiple_choice"):
            self.assertIn(part, recipe)

    def test_supervised_data_makes_a_supervised_recipe(self):
        for lines in ({"prompt": "1>", "completion": "1;"}, {"messages": [{"role": "user", "content": "1"},
                                                                          {"role": "assistant", "content": "2"}]}):
            with self.subTest(lines=lines):
                self.recipe.unlink(missing_ok=True)
                recipe, _ = self.written("--yes", "--model", self.model, "--data", self.data(lines))
                self.assertIn("task: sft", recipe)
                self.assertIn("sft: ", recipe)

    def test_what_cannot_be_used_is_refused_with_its_option(self):
        data, model = self.data({"prompt": "1>", "answer": "1"}), self.model
        for words, expected in (((), "--model is missing"),
                                (("--model", "Qwen/Qwen3-0.6B"), "hf download"),
                                (("--model", "~/m"), "~ is not replaced"),
                                (("--model", model), "--data is missing"),
                                (("--model", model, "--data", "no.jsonl"), "--data is no.jsonl, which is no file"),
                                (("--model", model, "--data", data, "--task", "sft"), "--task is sft, but the data holds prompts"),
                                (("--model", model, "--data", data, "--task", "maths"), "reward 'maths' is unknown"),
                                (("--model", model, "--data", data, "--gpus", "-1"), "--gpus is -1, expected 0 to 1024"),
                                (("--output", "/nowhere/r.yaml"), "cannot be written")):
            with self.subTest(words=words):
                code, text = self.ringside("init", "--yes", *words)
                self.assertEqual(code, 2, text)
                self.assertIn(expected, text)
                self.assertFalse(self.recipe.exists())

    def test_a_recipe_is_not_overwritten(self):
        self.recipe.write_text("mine")
        code, text = self.ringside("init", "--yes", "--model", self.model)
        self.assertEqual((code, self.recipe.read_text()), (2, "mine"))
        self.assertIn("exists already", text)

    def test_the_end_of_the_input_is_an_error_that_names_the_option(self):
        code, text = self.ringside("init", answers="")
        self.assertEqual(code, 2, text)
        self.assertIn("--model is missing", text)


if __name__ == "__main__":
    unittest.main()
