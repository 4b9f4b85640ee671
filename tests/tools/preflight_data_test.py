"""What `ringside check` refuses of data, templates and rewards, each with a sentence that names file and line.

Guards: a line, a template or an answer that passes `check` and then ends a run or makes every reward 0.

Usage: preflight_data_test.py RINGSIDE. Standard library only.
"""

import json
import re
import unittest

from preflight_case import PROMPTS, ROOT, PreflightCase


class PreflightData(PreflightCase):
    # --- data ---

    def test_data_files_are_read_to_the_last_line(self):
        for name, content, parts in (
                ("empty", [], ("holds no example",)),
                ("no prompt", [PROMPTS[0], {"question": "1", "answer": "1"}], (":2", '"prompt"', "data.prompt_key", '"question"')),
                ("no object", [[1, 2]], (":1", "array", "expected an object")),
                ("no JSON", [PROMPTS[0], '{"prompt": "1"'], (":2", "not valid JSON")),
                ("a number", [{"prompt": 5, "answer": "1"}], (":1", "number")),
                ("a CSV", ["prompt,answer", "1,2"], (":1", "not valid JSON")),
                ("an empty prompt", [{"prompt": "", "answer": "1"}], (":1", "0 tokens")),
                ("no template", [{"prompt": [{"role": "user", "content": "1"}], "answer": "1"}], (":1", "data.chat_template")),
                ("a long prompt", [*PROMPTS, {"prompt": "1" * 30, "answer": "1"}], (":5", "30 tokens", "rollout.max_prompt_tokens", "data.on_overlong"))):
            with self.subTest(name):
                self.lines("train.jsonl", content)
                self.refused(expect=("data.train", "train.jsonl", *parts))
        (self.folder / "train.jsonl").write_bytes(b'{"prompt": "\xe9", "answer": "1"}\n')
        self.refused(expect=("train.jsonl:1", "UTF-8"))
        (self.folder / "train.jsonl").write_bytes(b"\x1f\x8b\x08\x00rest")
        self.refused(expect=("train.jsonl", "gzip"))
        self.refused(f"data.train={self.folder}", expect=("data.train", "is a directory"))
        self.refused("data.train=nothere.jsonl", expect=("data.train", "nothere.jsonl", "does not exist"))
        self.refused("data.train=", expect=("data.train is not set",))

    def test_the_first_prompt_is_shown_as_the_model_gets_it(self):
        self.assertIn('data.train: the first prompt is "312>"', self.accepted())
        self.lines("train.jsonl", [{"prompt": [{"role": "user", "content": "12"}], "answer": "1"}])
        self.write(self.model / "tokenizer_config.json",
                   {"chat_template": "{% for m in messages %}{{ m.content }}{{ tail }}{% endfor %}", "eos_token": ";"})
        text = self.accepted("data.chat_template=model", 'data.template_options={"tail": "3>"}')
        self.assertIn('the first prompt is "123>"', text)
        run = self.ringside("run", self.recipe, "data.chat_template=model", "--run-dir", self.folder / "run")
        self.assertEqual(run[0], 0, run[1])
        self.write(self.model / "tokenizer_config.json", {"chat_template": "{{ raise_exception('no ' + messages[0].role) }}"})
        self.refused("data.chat_template=model", expect=("train.jsonl:1", "no user", "line 1 of the template"))
        self.write(self.model / "tokenizer_config.json", {})
        self.refused("data.chat_template=model", expect=("data.train", "has no default chat template"))
        self.refused("data.template_options={}", expect=("data.template_options", "expected data.chat_template model"))

    def test_images_are_described_and_samples_of_them_are_drawn(self):
        samples = ROOT / "tests/fuzz/corpus/image"
        for name in ("rgb.png", "exif_6.jpg"):
            (self.folder / name).write_bytes((samples / name).read_bytes())
        self.write_vision_model(placeholder="5")
        records = [{"prompt": "1525>", "answer": "1", "picture": ["rgb.png", "exif_6.jpg"]},
                   {"prompt": "5>", "answer": "1", "picture": "rgb.png"}]
        self.lines("train.jsonl", records)
        pictures = ("data.image_key=picture", "model.init=random")
        text = self.accepted(*pictures)
        self.assertIn("data.train: the first prompt has 2 images; rgb.png: 10 rows of 14 pixels, resized to 8 x 16, 2 tokens; "
                      "exif_6.jpg: 14 rows of 10 pixels, resized to 16 x 8, 2 tokens", text)
        self.assertIn("at most 7 tokens", text)  # 3 of text, 2 for each image
        run = self.ringside("run", self.recipe, *pictures, "--run-dir", self.folder / "run")
        self.assertEqual(run[0], 0, run[1])
        server = ("rollout.server=llama_cpp", "rollout.server_url=http://127.0.0.1:9")
        self.refused(*pictures, *server, expect=("rollout.server: is llama_cpp, but data.image_key is set", "expected embedded or vllm"))
        self.lines("train.jsonl", [records[0], {**records[1], "picture": None}])
        self.refused(*pictures, expect=("train.jsonl:2", "the prompt has 0 images"))
        (self.folder / "rgb.png").write_bytes((samples / "rgb.png").read_bytes()[:70])
        self.lines("train.jsonl", records)
        self.refused(*pictures, expect=("train.jsonl:1", "the image is a PNG that cannot be decoded"))
        self.lines("train.jsonl", [{"prompt": [{"role": "user", "content": [{"type": "image", "image": "rgb.png"}]}], "answer": "1"}])
        self.refused("data.chat_template=model", expect=("train.jsonl:1", "data.image_key is not set"))
        self.refused("data.max_image_pixels=100", expect=("data.max_image_pixels", "data.image_key is not set"))

    def write_vision_model(self, placeholder: str):
        """The configuration of a tiny Qwen3-VL; the character `placeholder` stands for an image."""
        vocabulary = json.loads((self.model / "tokenizer.json").read_text())["model"]["vocab"]
        text = {**self.config, "model_type": "qwen3_vl_text",
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}}
        tower = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2,
                 "spatial_merge_size": 2, "out_hidden_size": text["hidden_size"], "num_position_embeddings": 16,
                 "deepstack_visual_indexes": []}
        self.write(self.model / "config.json", {"model_type": "qwen3_vl", "image_token_id": vocabulary[placeholder],
                                                "text_config": text, "vision_config": tower})
        self.write(self.model / "preprocessor_config.json",
                   {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 4096}})

    def test_answers_that_no_completion_can_match_are_refused(self):
        for answer, reward, expected in (([1, 2], "math_answer", "is an array, which math_answer cannot compare"),
                                         (True, "exact_match", "is a boolean, which exact_match cannot compare"),
                                         ("we add them all and so we find\n72", "math_answer", "no completion can score"),
                                         ("1 + 1\n#### 2", "exact_match", "compares the whole of it")):
            with self.subTest(answer=answer):
                self.lines("train.jsonl", [PROMPTS[0], {**PROMPTS[1], "answer": answer}])
                self.refused(f"rollout.reward={reward}", expect=("train.jsonl:2", expected))
        self.lines("train.jsonl", [{**prompt, "answer": "1 + 1 = 2\n#### 2"} for prompt in PROMPTS])
        self.accepted("rollout.reward=math_answer")

    def test_a_function_is_called_with_two_completions_of_which_one_may_have_no_score(self):
        self.write(self.folder / "rewards.py", "def one(completions):\n    return [1.0]\n"
                   "def huge(completions):\n    return [1e300 for _ in completions]\n"
                   "def none(completions):\n    return [1.0, None]\n")
        self.refused(f"rollout.reward=python({self.folder}/rewards.py:one)", expect=("returned 1 scores for 2 completions",))
        self.refused(f"rollout.reward=python({self.folder}/rewards.py:huge)", expect=("1e+300", "-1e+06 to 1e+06"))
        self.accepted(f"rollout.reward=python({self.folder}/rewards.py:none)")

    def test_tests_that_do_not_parse_are_refused(self):
        self.lines("train.jsonl", [{**PROMPTS[0], "answer": "assert f(1) == 1"}, {**PROMPTS[1], "answer": "assert f(1 =="}])
        self.refused("rollout.reward=code_tests", expect=("train.jsonl:2", "is no Python code", "line 1: "))

    def test_text_beside_messages_and_repeated_ids_are_noted(self):
        self.write(self.model / "tokenizer_config.json", {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})
        self.lines("train.jsonl", [{"prompt": "12>", "answer": "1", "id": "a"},
                                   {"prompt": [{"role": "user", "content": "12>"}], "answer": "1", "id": "a"}])
        text = self.accepted("data.chat_template=model")
        self.assertIn("1 of 2 prompts are text", text)
        self.assertIn('1 prompts have the "id" of another', text)

    def test_tables_of_text_and_files_of_columns_say_what_is_expected(self):
        self.write(self.folder / "train.csv", "prompt,answer\n12>,1\n")
        self.refused(f"data.train={self.folder}/train.csv", expect=("is a table of text; expected JSON Lines",))
        self.write(self.folder / "train.json", {"prompt": ["12>"], "answer": ["1"]})
        self.refused(f"data.train={self.folder}/train.json", "data.chat_template=chatml", expect=("in a file of columns",))
        self.write(self.folder / "train.json", {"prompt": [[{"role": "user", "content": "12>"}]], "answer": ["1"]})
        self.refused(f"data.train={self.folder}/train.json", "data.chat_template=chatml", expect=("in a file of columns",))

    def test_rewards_of_weight_0_and_a_separator_that_none_reads_are_refused(self):
        self.refused("rollout.reward=math_answer*0", expect=("rollout.reward", "every weight is 0"))
        self.accepted("rollout.reward=exact_match, length*0")
        self.refused("rollout.reward=length", "rollout.reward_separator===", expect=("rollout.reward_separator", "no reward of rollout.reward looks for a separator"))

    def test_keys_of_messages_need_a_template(self):
        for word in ("data.text_prompts=user", "data.system_prompt=x"):
            self.refused(word, expect=("but data.chat_template is none",))
        self.refused(*self.sft, "data.prompt_suffix=x", expect=("data.prompt_suffix", "learn from data.sft"))

    def test_python_rewards_are_tried_and_used(self):
        rewards = self.write(self.folder / "rewards.py", "def near(completions, answers):\n"
                             "    return [float(a == c) for a, c in zip(answers, completions)]\n"
                             "def wrong(completions):\n    return [1 / 0]\n")
        text = self.recipe.read_text()
        self.recipe.write_text(text.replace("rollout: {", "rollout: {reward: 'python(rewards.py:near) * 2', "))
        self.accepted()
        code, output = self.ringside("run", self.recipe, "--run-dir", self.folder / "run")
        self.assertEqual(code, 0, output)
        metrics = json.loads((self.folder / "run" / "metrics.jsonl").read_text().splitlines()[0])
        self.assertIn("rewards/near/mean", metrics)
        self.refused("rollout.reward=python(rewards.py:wrong)",
                     expect=("rollout.reward", "rewards.py:4: in wrong: ZeroDivisionError", "train.jsonl:1"))
        self.refused("rollout.reward=python(rewards.py:far)", expect=("has no function far; it has near, wrong",))
        self.refused("rollout.reward=python(no.py:far)", expect=("no.py", "No such file"))
        rewards.write_text("import nothing_like_it\n")
        self.refused(expect=("rewards.py:1", "nothing_like_it"))

    def test_the_example_of_a_reward_in_the_documents(self):
        text = (ROOT / "recipes" / "bring_your_own.md").read_text()
        example = re.search(r"```python\n(.*?)```", text, re.S).group(1)
        self.write(self.folder / "rewards.py", example)
        self.lines("train.jsonl", [{**prompt, "difficulty": "easy"} for prompt in PROMPTS])
        self.accepted(f"rollout.reward=python({self.folder}/rewards.py:score), length * 0.1",
                      "rollout.reward_options.python_processes=2")
        scope: dict = {}
        exec(example, scope)
        self.assertEqual(scope["score"](["it is 12", "13", "none"], ["12", "12", "1"]), [1.0, 0.0, 0.0])
        self.assertEqual(scope["score"](["12"], ["12"], ["easy"]), [0.5])

    def test_several_files_with_weights(self):
        self.write(self.folder / "more.json", PROMPTS[:2])
        text = self.accepted(f"data.train=[{{path: {self.folder}/train.jsonl, weight: 3}}, {self.folder}/*.json]")
        self.assertIn("data.train: 6 prompts", text)
        self.refused("data.train=[{path: train.jsonl, weight: -1}]", expect=("data.train", "above 0"))
        self.write(self.folder / "more.json", [PROMPTS[0], {}])
        self.refused("data.train=[train.jsonl, more.json]", expect=("more.json: row 2", '"prompt"'))

    def test_a_template_whose_markers_the_tokenizer_lacks(self):
        self.lines("train.jsonl", [{"prompt": [{"role": "user", "content": "1"}], "answer": "1"}])
        self.refused("data.chat_template=chatml", expect=("<|im_start|>", "not one token"))

    def test_many_mistakes_of_one_file_are_counted(self):
        self.lines("train.jsonl", [{"question": str(i)} for i in range(500)])
        text = self.refused(expect=("train.jsonl:1:", "more"))
        self.assertLess(sum("train.jsonl" in line for line in text.splitlines()), 15)

    def test_held_out_prompts_and_examples_are_read_too(self):
        self.lines("eval.jsonl", [{"prompt": "1>"}])
        self.refused(f"data.eval={self.folder}/eval.jsonl", "eval.every=1", expect=("data.eval", "eval.jsonl:1", "answer"))
        self.refused(f"eval.sets={{hard: {self.folder}/eval.jsonl}}", "eval.every=1",
                     expect=("eval.sets.hard", "eval.jsonl:1", "answer"))
        self.accepted(*self.sft)
        self.refused("algorithm.task=sft", expect=("data.sft is not set",))
        self.lines("sft.jsonl", [{"prompt": "1"}, {"prompt": "1", "completion": ""}, {"prompt": "", "completion": "1"}])
        self.refused(*self.sft, expect=("data.sft", "sft.jsonl:1", '"completion"', "sft.jsonl:3"))

    def test_pairs_are_read_too(self):
        files = f"data.preferences={self.folder}/pairs.jsonl"
        self.lines("pairs.jsonl", [{"prompt": "1", "chosen": "2", "rejected": "1"}])
        for task in ("dpo", "reward_model"):
            self.assertIn("data.preferences: 1 pair", self.accepted(f"algorithm.task={task}", files))
        self.refused("algorithm.task=dpo", expect=("data.preferences is not set",))
        self.lines("pairs.jsonl", [{"prompt": "1", "chosen": "2"}, {"prompt": "1", "chosen": ["2"], "rejected": "1"}])
        self.refused("algorithm.task=dpo", files, expect=("pairs.jsonl:1", '"rejected"', "pairs.jsonl:2"))

    def test_overlong_prompts_by_policy(self):
        self.lines("train.jsonl", [*PROMPTS, {"prompt": "1" * 30, "answer": "1"}])
        self.refused(expect=("1 of 5 prompts", "data.on_overlong"))
        self.assertIn("1 of 5 prompts", self.accepted("data.on_overlong=drop"))
        self.assertIn("1 of 5 prompts", self.accepted("data.on_overlong=truncate"))
        self.refused("rollout.max_prompt_tokens=2", "data.on_overlong=drop", expect=("no prompt is left",))
        for policy in ("drop", "truncate"):
            with self.subTest(policy):
                code, text = self.ringside("run", self.recipe, f"data.on_overlong={policy}", "log.rollouts=true",
                                           "train.steps=3", "--run-dir", self.folder / policy)
                self.assertEqual(code, 0, text)
                self.assertIn("1 of 5 prompts", text)
                lengths = [len(json.loads(line)["prompt_ids"])
                           for line in (self.folder / policy / "rollouts.jsonl").read_text().splitlines()]
                self.assertEqual(max(lengths), 4 if policy == "drop" else 16, lengths)

    # --- rewards ---

    def test_answers_that_no_reward_could_use(self):
        for reward, answer, parts in (("exact_match", None, ("no answer",)),
                                      ("math_answer", " ", ("answer",)),
                                      ("multiple_choice", "nothing here", ("letter",)),
                                      ("json_schema", "no schema", ("schema",)),
                                      ("code_tests", 7, ("code_tests",)),
                                      ("code_tests", {"inputs": ["1"], "outputs": []}, ("inputs", "outputs")),
                                      ("code_tests", {"tests": ["1"]}, ("code_tests", "inputs")),
                                      ("code_tests", {"fn_name": "f", "inputs": ["1"], "outputs": ["1"]}, ("fn_name",))):
            with self.subTest(reward=reward, answer=answer):
                line = {"prompt": "1>"} if answer is None else {"prompt": "1>", "answer": answer}
                self.lines("train.jsonl", [PROMPTS[0] if reward == "exact_match" else line, line])
                self.refused(f"rollout.reward={reward}", expect=("train.jsonl:2", "data.answer_key", *parts))
        self.lines("train.jsonl", [{"prompt": "1>"}])
        self.accepted("rollout.reward=length")

    def test_settings_of_rewards(self):
        for word, parts in (("rollout.reward=http", ("rollout.reward_options.http_url", "http[s]://host")),
                            ("rollout.reward=regex", ("rollout.reward_options.regex",)),
                            ("rollout.reward=json_schema rollout.reward_options.json_schema=/nope", ("json_schema", "/nope")),
                            ("rollout.reward=code_tests rollout.reward_options.code_command=nope", ("code_command", "nope"))):
            with self.subTest(word):
                self.refused(*word.split(" "), expect=("rollout.reward", *parts))


if __name__ == "__main__":
    unittest.main()
