"""What `ringside check` and the start of `run` and `train` refuse, each with a sentence that names the place.

Guards: a mistake that passes `check` and then ends or stalls a run; text of a library or a stack trace in front of a user.

Usage: preflight_test.py RINGSIDE. Standard library only.
"""

import http.server
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests/tools"))
import quickstart_task  # noqa: E402
from tiny_weights import shapes_of, write_weights  # noqa: E402

PROMPTS = [{"prompt": f"{digits}>", "answer": "".join(sorted(digits))} for digits in ("312", "231", "213", "132")]
HEADS, POSITIONS = 4, 64
# None of these may reach a user.
LIBRARY_TEXT = ("[json.exception", "frame #", "Exception raised from", "terminate called")


def model_config() -> dict:
    return {**quickstart_task.model_config(), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": HEADS, "head_dim": 8, "max_position_embeddings": POSITIONS}


class Preflight(unittest.TestCase):
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
        done = subprocess.run([RINGSIDE, *(str(word) for word in words)], stdout=subprocess.PIPE,
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

    # --- the control ---

    def test_a_good_recipe_is_accepted_and_runs(self):
        self.assertIn("4 prompts", self.accepted())
        self.assertEqual(self.ringside("run", self.recipe, "--run-dir", self.folder / "run")[0], 0)

    def test_the_memory_of_a_rank_follows_the_recipe(self):
        def size(*words):
            found = re.search(r"memory of a rank: about ([0-9.]+) (KiB|MiB|GiB) at", self.accepted(*words))
            self.assertIsNotNone(found, words)
            return float(found.group(1)) * {"KiB": 1, "MiB": 1024, "GiB": 1024**2}[found.group(2)]

        whole = size("train.tokens_per_micro_batch=1000000")
        self.assertGreater(whole, 100 * 1024)
        halved = size("train.tokens_per_micro_batch=1000000", "parallel.ringattn_parallel_size=2")
        self.assertAlmostEqual(halved / whole, 0.5, delta=0.05)
        doubled = size("train.tokens_per_micro_batch=1000000", "model.dtype=float64")
        self.assertAlmostEqual(doubled / whole, 2, delta=0.1)

    def test_a_run_that_no_machine_can_hold_is_refused_with_keys_that_need_less(self):
        # 5 * 10^12 parameters.
        self.write(self.model / "config.json", {**self.config, "hidden_size": 65536, "intermediate_size": 262144,
                                                "num_hidden_layers": 80})
        random = ("model.init=random",)
        parts = ("model.path", "the run needs about", "1 rank of", "1 worker of", "published weights",
                 "with model.recompute=full", "lora.rank=16", "ringside check --memory")
        self.refused(*random, expect=parts)
        self.refused(*random, expect=parts, command="run")
        text = self.refused(*random, *self.sft, expect=("model.path", "1 rank of"), command="train")
        self.assertNotIn("worker of", text)
        code, text = self.ringside("doctor", self.recipe, *random)
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r"bad +memory of the run; advice: the run needs about")
        # Planned for another machine, it is a question and no mistake.
        self.assertIn("does not fit", self.accepted(*random, "--memory", "80GiB"))

    def test_a_run_that_fits_is_healthy(self):
        self.assertIn("memory of the run: it fits", self.ringside("doctor", self.recipe)[1])

    def test_the_memory_that_is_planned_with_is_that_of_the_line_above(self):
        text = self.accepted("--memory", "80GiB", "train.tokens_per_micro_batch=4096")
        above = re.search(r"memory of a rank: about ([0-9.]+ [KMG]iB)", text)
        planned = re.search(r"the layout above fits: ([0-9.]+ [KMG]iB) a rank", text)
        self.assertIsNotNone(above, text)
        self.assertIsNotNone(planned, text)
        self.assertEqual(above.group(1), planned.group(1))

    def test_sizes_of_a_small_model_are_printed_in_units_that_show_them(self):
        text = self.accepted()
        sizes = re.findall(r"[0-9.]+ (?:B|KiB|MiB|GiB)\b", text)
        self.assertGreater(len(sizes), 6, text)
        self.assertEqual([size for size in sizes if float(size.split()[0]) == 0 and not size.endswith(" B")], [], text)
        self.assertRegex(text, r"weights [1-9][0-9.]* KiB")

    def test_every_mistake_is_printed_at_once(self):
        self.lines("train.jsonl", [PROMPTS[0], {"question": "1"}, "{", {"prompt": "1" * 30, "answer": "1"}])
        (self.model / "tokenizer.json").unlink()
        text = self.refused("bridge.rollout_address=localhost:7001", "rollout.top_k=3")
        for part in ("tokenizer.json", "train.jsonl:2", "train.jsonl:3", "bridge.rollout_address", "rollout.top_k"):
            self.assertIn(part, text)

    # --- the model ---

    def test_routes_of_a_model_without_experts(self):
        self.refused("algorithm.router_replay=rollout", expect=("algorithm.router_replay: is rollout", "has no experts"))

    def test_ranks_for_experts_that_the_model_does_not_have(self):
        self.refused("parallel.data_parallel_shard_size=2", "parallel.expert_parallel_size=2",
                     expect=("parallel.expert_parallel_size: is 2", "has no experts", "expected 1"))

    def test_balance_of_a_model_without_experts(self):
        self.refused("model.router_aux_loss_coef=0.01", "model.router_bias_update_rate=0.01",
                     expect=("model.router_aux_loss_coef: is 0.01", "has no experts; expected 0",
                             "model.router_bias_update_rate: is 0.01", "e_score_correction_bias"))

    def test_a_model_that_is_not_a_directory_here(self):
        for path, parts in {"": ["model.path is not set"],
                            "nothere": ["model.path", "nothere", "does not exist"],
                            "Qwen/Qwen3-0.6B": ["model.path", "hf download Qwen/Qwen3-0.6B"],
                            "~/models/x": ["model.path", f"{os.environ.get('HOME', '')}/models/x", "does not exist"],
                            "train.jsonl": ["model.path", "expected a directory"]}.items():
            with self.subTest(path=path):
                self.refused(f"model.path={path}", expect=tuple(parts))

    def test_files_that_belong_beside_the_weights(self):
        adapter = self.folder / "adapter"
        adapter.mkdir()
        self.write(adapter / "adapter_config.json", {})
        self.refused(f"model.path={adapter}", expect=("adapter", "its base model", "lora.path"))
        for name, text, parts in (("config.json", None, ("config.json", "does not exist")),
                                  ("config.json", '{"model_type": ', ("config.json:1:", "not valid JSON")),
                                  ("tokenizer.json", None, ("tokenizer.json", "does not exist")),
                                  ("tokenizer.json", '{"model": {', ("tokenizer.json:1:", "not valid JSON")),
                                  ("tokenizer.json", "{}", ("tokenizer.json", "model"))):
            with self.subTest(name=name, text=text):
                kept = (self.model / name).read_text()
                (self.model / name).unlink()
                if text is not None:
                    self.write(self.model / name, text)
                self.refused(expect=parts)
                self.write(self.model / name, kept)

    def test_fields_that_change_nothing_are_listed_and_those_that_do_are_refused_together(self):
        more = {"internal_version": "7b", "is_causal": True, "bias": False,
                "dual_chunk_attention_config": {"original_max_position_embeddings": 32}}
        self.write(self.model / "config.json", {**self.config, **more})
        text = self.accepted()
        self.assertIn("model.path: fields of config.json that change nothing here are passed over: "
                      "dual_chunk_attention_config, bias, internal_version, is_causal", text)
        self.assertIn("documents of more than 32 tokens are refused", text)
        # The longest prompt has 4 tokens.
        self.refused("rollout.max_completion_tokens=29", expect=("expected at most 28",))
        self.write(self.model / "config.json", {**self.config, "clip_qkv": 8.0, "logits_scaling": 8.0})
        self.write(self.model / "hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}})
        self.refused(expect=("'clip_qkv' is a field", "'logits_scaling' is a field", "quant_algo FP8"))

    def test_weights_are_judged_by_their_headers(self):
        weights = self.model / "model.safetensors"
        shapes = shapes_of(self.config)
        write_weights(weights, {**shapes, "model.norm.weight": [15]})
        self.refused(expect=("model.norm.weight", "[15]", "[16]"))
        write_weights(weights, {name: shape for name, shape in shapes.items() if "q_proj" not in name and "norm" not in name})
        self.refused(expect=("self_attn.q_proj.weight", "model.norm.weight", "none of the weight files"))
        write_weights(weights, {**shapes, "model.extra": [2]})
        self.refused(expect=("model.extra",))
        self.write(weights, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        self.refused(expect=("git-lfs", "git lfs pull"))
        weights.unlink()
        self.refused(expect=("model.safetensors",))
        (self.model / "pytorch_model.bin").write_bytes(b"")
        self.refused(expect=("pytorch_model.bin",))
        self.accepted("model.init=random")

    def test_weights_that_are_not_finite_name_the_tensor(self):
        write_weights(self.model / "model.safetensors", shapes_of(self.config), "model.norm.weight")
        code, text = self.ringside("train", self.recipe, *self.sft, "--run-dir", self.folder / "run")
        self.assertEqual(code, 1, text)
        self.assertIn("model.norm.weight", text)
        self.assertIn("finite", text)

    def test_what_the_configuration_asks_of_the_model(self):
        self.refused("rollout.max_completion_tokens=64",
                     expect=("rollout.max_completion_tokens", "max_position_embeddings", str(POSITIONS)))
        self.accepted("rollout.max_prompt_tokens=1000")  # the prompts that are there fit
        self.refused("parallel.ulysses_parallel_size=8", expect=("parallel.ulysses_parallel_size", "4 query heads"))
        self.refused("parallel.context_parallel_size=8", "sp.method=ulysses", expect=("4 query heads",))
        self.refused("algorithm.kl_coef=0.1", "model.reference_path=/nope", expect=("model.reference_path", "/nope"))
        self.refused("algorithm.advantage.estimator=gae", "algorithm.critic.model_path=/nope",
                     expect=("algorithm.critic.model_path", "/nope"))
        self.write(self.model / "config.json", {**self.config, "vocab_size": 40})
        write_weights(self.model / "model.safetensors", shapes_of({**self.config, "vocab_size": 40}))
        self.refused(expect=("tokenizer.json", "vocab_size", "40"))

    def test_projections_that_the_model_does_not_have(self):
        shared = {key: value for key, value in self.config.items() if "window" not in key and key != "layer_types"}
        latent = {**shared, "model_type": "deepseek_v3", "num_key_value_heads": HEADS, "head_dim": 4,
                  "q_lora_rank": 6, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4,
                  "n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
                  "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0}
        self.write(self.model / "config.json", latent)
        random = ("model.init=random",)
        self.accepted(*random)
        self.accepted(*random, "lora.rank=2", "lora.target_modules=q_a_proj,kv_b_proj,o_proj")
        self.refused(*random, "lora.rank=2",
                     expect=("lora.target_modules", "experts have none", "kv_a_proj_with_mqa"))
        self.refused(*random, "lora.rank=2", "lora.target_modules=k_proj", expect=("lora.target_modules", "q_a_proj"))
        self.refused(*random, "sp.async_ulysses=true", "parallel.ulysses_parallel_size=2",
                     expect=("sp.async_ulysses", "latent attention", "deepseek_v3"))
        quantised = ("lora.rank=2", "lora.base=nf4", "lora.target_modules=q_a_proj")
        self.refused(*random, *quantised, expect=("lora.base: is nf4, but latent attention cannot be quantised",
                                                   "expected model"))
        self.write(self.model / "config.json", {**latent, "first_k_dense_replace": 1})
        self.refused(*random, *quantised, expect=("lora.base: is nf4, but", "deepseek_v3"))
        self.write(self.model / "config.json", self.config)
        self.accepted("lora.rank=2", "lora.base=nf4")

    def test_values_that_are_seldom_meant_are_noted(self):
        # Planned for another machine: this one has no memory for so many workers.
        text = self.accepted("--memory", "80GiB", "rollout.num_workers=1000", "optimizer.warmup_steps=50",
                             "optimizer.learning_rate=0", "rollout.prompts_per_step=300",
                             f"data.eval={self.folder}/train.jsonl", "eval.every=1")
        for note in ("rollout.num_workers x rollout.worker_threads is 1000 x 1",
                     "optimizer.warmup_steps is 50 of 1 optimizer steps", "optimizer.learning_rate is 0: the weights do not change",
                     "data.train has 4 prompts, fewer than rollout.prompts_per_step 300",
                     "data.eval names the files of data.train"):
            self.assertIn("warning: " + note, text)
        self.lines("train.jsonl", [PROMPTS[0]] * 3)
        self.assertIn("warning: data.train has 3 prompts of one text", self.accepted())
        self.lines("train.jsonl", PROMPTS)
        self.assertNotIn("warning", self.accepted())

    def test_ulysses_ranks_that_a_hybrid_model_has_no_heads_for(self):
        shared = {key: value for key, value in self.config.items() if "window" not in key}
        hybrid = {**shared, "model_type": "qwen3_5_text", "num_key_value_heads": 1, "layer_types": ["linear_attention"],
                  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
                  "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4}
        self.write(self.model / "config.json", hybrid)
        random = ("model.init=random",)
        text = self.accepted(*random, "parallel.ulysses_parallel_size=2")  # more than key/value heads
        self.assertIn("memory of a rank", text)
        self.refused(*random, "parallel.ulysses_parallel_size=4",
                     expect=("parallel.ulysses_parallel_size", "2 key heads in its delta nets", "linear_num_key_heads"))
        self.refused(*random, "parallel.context_parallel_size=4", "sp.method=ulysses", expect=("2 key heads",))
        text = self.accepted(*random, "parallel.context_parallel_size=4")
        self.refused(*random, "parallel.ulysses_parallel_size=2", "sp.async_ulysses=true",
                     expect=("sp.async_ulysses: is true, but models with gated delta nets", "qwen3_5_text", "expected false"))
        self.assertIn("ulysses 2 x ring 2", text)
        self.assertNotIn("ulysses 4", text)

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
        self.refused(*self.sft, "data.prompt_suffix=x", expect=("data.prompt_suffix", "learns from data.sft"))

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
        for word, parts in (("rollout.reward=http", ("rollout.reward_options.http_url", "http://")),
                            ("rollout.reward=regex", ("rollout.reward_options.regex",)),
                            ("rollout.reward=json_schema rollout.reward_options.json_schema=/nope", ("json_schema", "/nope")),
                            ("rollout.reward=code_tests rollout.reward_options.code_command=nope", ("code_command", "nope"))):
            with self.subTest(word):
                self.refused(*word.split(" "), expect=("rollout.reward", *parts))

    # --- settings that only a run would refuse ---

    def test_settings_that_only_a_run_would_refuse(self):
        self.refused("rollout.top_p=0.9", expect=("rollout.top_p", "expected 1"))
        self.refused("rollout.top_k=5", expect=("rollout.top_k", "expected 0"))
        self.refused("algorithm.advantage.estimator=given", expect=("algorithm.advantage.estimator", "--rollouts"))
        self.refused("rollout.stop=zzzz;", expect=("rollout.stop", "tokens"))
        self.refused("bridge.rollout_address=tcp://0.0.0.0:7001", expect=("bridge.rollout_address", "CURVE"))
        self.refused("bridge.weights_address=localhost:7001", expect=("bridge.weights_address",))
        self.refused("bridge.curve.trainer_secret=/nope", "bridge.curve.allowed_workers=/nope2",
                     expect=("bridge.curve.trainer_secret", "/nope", "bridge.curve.allowed_workers", "/nope2"))
        self.refused("rollout.server=vllm", "rollout.server_options.url=localhost",
                     expect=("rollout.server_options.url", "http://"))
        self.refused("rollout.server=vllm", "rollout.server_options.api_key_file=/nope",
                     expect=("rollout.server_options.api_key_file", "/nope"))

    def test_a_server_that_does_not_answer_is_named(self):
        server = ("rollout.server=python", "rollout.server_options.url=http://127.0.0.1:9")
        self.assertRegex(self.accepted(*server), "WARNING: the python server at http://127.0.0.1:9 does not answer")
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            self.assertIn(f"the vllm server at {url} does not answer",
                          self.accepted("rollout.server=vllm", f"rollout.server_options.url={url}"))
        # The worker starts it.
        self.assertNotIn("does not answer", self.accepted("rollout.server=llama_cpp", server[1], "rollout.server_options.weights=restart",
                                                          "rollout.server_options.start_command=serve {model} {port}"))

    def test_threads_above_the_cores_are_told(self):
        for key in ("train.threads", "rollout.worker_threads"):
            self.assertRegex(self.accepted(f"{key}=1000"), f"WARNING: {key} is 1000, but this machine has [0-9]+ core")

    def test_a_reward_server_that_gives_no_reward_is_named(self):
        def checked(url: str) -> str:
            return self.accepted("rollout.reward=http", f"rollout.reward_options.http_url={url}",
                                 "rollout.reward_options.http_timeout_s=1")
        self.assertIn("rollout.reward_options.http_url http://127.0.0.1:9/score: POST http://127.0.0.1:9/score: cannot connect",
                      checked("http://127.0.0.1:9/score"))
        answers = []

        class Server(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                answers.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"reward": 1}' if self.path == "/good" else b'{"score": 1}')

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        url = f"http://127.0.0.1:{server.server_port}"
        self.assertNotIn("WARNING", checked(f"{url}/good"))
        self.assertIn('holds no finite "reward"', checked(f"{url}/other"))
        self.assertEqual(answers, ["/good", "/other"])

    def test_ranks_above_the_cores_are_told(self):
        ranks = 2 * os.cpu_count()
        words = (f"parallel.ringattn_parallel_size={ranks}", "model.device=cpu")
        self.assertIn(f"WARNING: {ranks} ranks (parallel.*) share the {os.cpu_count()} cores of this machine's CPU",
                      self.accepted(*words))
        self.assertNotIn("share the", self.accepted(*words, "--memory", "80GiB"))

    def test_check_says_at_its_end_that_nothing_is_wrong(self):
        self.assertTrue(self.accepted().endswith("\nno mistakes found\n"))
        self.assertNotIn("no mistakes found", self.refused("train.steps=0"))

    def test_a_template_that_cannot_be_used_is_one_mistake(self):
        self.write(self.model / "tokenizer_config.json", {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})
        self.lines("train.jsonl", [{"prompt": [{"role": "user", "content": "12>"}], "answer": "1"}])
        self.lines("held_out.jsonl", [{"prompt": [{"role": "user", "content": "21>"}], "answer": "1"}])
        text = self.refused("data.chat_template=model", 'data.template_options={"tial": "3>"}', "eval.every=1",
                            f"data.eval={self.folder}/held_out.jsonl", expect=("names tial",))
        self.assertIn("\n1 mistake;", text)

    def test_the_trainer_alone_refuses_lengths_that_check_refuses(self):
        words = (f"rollout.max_completion_tokens={POSITIONS}",)
        for command in ("check", "train"):
            self.refused(*words, command=command, expect=("rollout.max_completion_tokens", "more than the model's positions"))

    def test_run_and_train_refuse_before_they_start_anything(self):
        self.lines("train.jsonl", [*PROMPTS, "{"])
        text = self.refused(command="run", expect=("train.jsonl:5", "nothing was started"))
        self.assertNotIn("restarting", text)
        self.assertFalse((self.folder / "run").exists())
        self.lines("sft.jsonl", ["{"])
        self.refused(*self.sft, command="train", expect=("sft.jsonl:1", "nothing was started"))
        self.refused("model.path=", command="train", expect=("model.path is not set",))

    def test_workers_of_ones_own_need_no_prompts(self):
        own = ("data.train=", "rollout.reward=worker")
        text = self.accepted(*own)
        self.assertIn("waits for workers of your own", text)
        self.refused(*own, command="run", expect=("data.train", "is not set", "`ringside train`"))
        self.refused("data.train=", expect=("data.train", "is not set"))

    def test_the_error_that_ends_a_run_is_in_its_warnings(self):
        run_dir = self.folder / "run"
        code, text = self.ringside("train", self.recipe, *self.sft, "optimizer.learning_rate=1",
                                   "optimizer.weight_decay=1e30", "train.steps=20", "--run-dir", run_dir)
        self.assertEqual(code, 1, text)
        self.assertIn("Training has diverged", text)
        self.assertRegex((run_dir / "warnings.log").read_text(), "error.*Training has diverged")
        self.assertEqual(text.count("Training has diverged"), 1)

    def test_a_run_of_supervised_examples_starts_no_worker(self):
        code, text = self.ringside("run", self.recipe, *self.sft, "--run-dir", self.folder / "run")
        self.assertEqual(code, 0, text)
        self.assertNotIn("worker0", text)

    # --- the command line ---

    def test_words_of_the_command_line_that_do_nothing(self):
        run = ("--run-dir", self.folder / "run")
        for command in ("run", "train"):
            for words in (("--steps", "0"), ("--steps", "-5"), ("--nproc", "0")):
                with self.subTest(command=command, words=words):
                    code, text = self.ringside(command, self.recipe, *run, *words)
                    self.assertEqual(code, 2, text)
                    self.assertIn("expected at least 1", text)
        code, text = self.ringside("train", self.recipe, *self.sft, *run, "--rollouts", self.folder / "train.jsonl")
        self.assertEqual(code, 2, text)
        self.assertIn("--rollouts", text)

    def test_words_that_are_neither_recipes_nor_overrides(self):
        for words, expected in ((("train.steps", "=", "3"), "expected train.steps=3"),
                                (("train.steps:3",), "expected train.steps=3"),
                                (("train.steps",), "expected train.steps=VALUE"),
                                (("train.steps=", "3"), "train.steps")):
            with self.subTest(words):
                self.refused(*words, expect=(expected,))
        code, text = self.ringside("tran", self.recipe)
        self.assertEqual(code, 2, text)
        self.assertIn("'tran'", text)
        self.assertIn("did you mean train", text)

    def test_an_output_that_cannot_be_written(self):
        words = ("generate", "--model", self.model, "--input", self.folder / "train.jsonl", "rollout.max_completion_tokens=2")
        code, text = self.ringside(*words, "--output", self.folder / "no/such/x.jsonl")
        self.assertEqual(code, 2, text)
        self.assertIn("--output", text)
        code, text = self.ringside(*words, "--output", self.folder / "x.jsonl")
        self.assertEqual(code, 0, text)
        self.assertEqual(len((self.folder / "x.jsonl").read_text().splitlines()), 4)

    def test_generate_takes_a_prompt_and_a_number_of_completions(self):
        model = ("generate", "--model", self.model, "rollout.max_completion_tokens=4")
        file = ("--input", self.folder / "train.jsonl", "--output", self.folder / "x.jsonl")
        code, text = self.ringside(*model, "--prompt", "31>", "-n", 3, "eval.temperature=1")
        self.assertEqual(code, 0, text)
        self.assertEqual(len(text.splitlines()), 3, text)
        code, text = self.ringside(*model, *file, "-n", 2, "eval.temperature=1")
        self.assertEqual(code, 0, text)
        self.assertEqual(json.loads(text)["samples"], 8)
        both = [json.loads(line) for line in (self.folder / "x.jsonl").read_text().splitlines()]
        self.assertEqual([(line["id"], line["sample"]) for line in both], [(str(1 + i // 2), i % 2) for i in range(8)])
        self.assertEqual(self.ringside(*model, *file, "eval.temperature=1")[0], 0)
        alone = [json.loads(line) for line in (self.folder / "x.jsonl").read_text().splitlines()]
        self.assertEqual([line["completion_ids"] for line in alone], [line["completion_ids"] for line in both[::2]])
        for words, part in ((("-n", 2, "--prompt", "1"), "eval.temperature is 0"), ((), "--prompt TEXT"),
                            (("--prompt", "1", *file), "--prompt TEXT"), (("-n", 0, "--prompt", "1"), "-n")):
            with self.subTest(words=words):
                code, text = self.ringside(*model, *words)
                self.assertEqual(code, 2, text)
                self.assertIn(part, text)

    def test_input_of_other_commands_is_named(self):
        self.lines("ids.jsonl", [{"ids": "abc"}])
        code, text = self.ringside("logprobs", "--model", self.model, "--input", self.folder / "ids.jsonl", "--output", self.folder / "o")
        self.assertEqual(code, 2, text)
        self.assertIn("ids.jsonl:1", text)
        self.assertIn('"ids"', text)
        self.lines("rollouts.jsonl", [{"prompt": "1"}])
        code, text = self.ringside("train", self.recipe, "--run-dir", self.folder / "run", "--rollouts", self.folder / "rollouts.jsonl")
        self.assertNotEqual(code, 0, text)
        self.assertIn("rollouts.jsonl:1", text)
        self.assertIn('no "prompt_ids"', text)

    # --- keys that only a process shows; tests/rl/config_effect_test.cpp names these tests ---

    def test_log_level_decides_what_is_logged(self):
        loud = self.ringside("train", self.recipe, *self.sft, "--run-dir", self.folder / "loud")
        quiet = self.ringside("train", self.recipe, *self.sft, "--run-dir", self.folder / "quiet", "log.level=error")
        self.assertEqual((loud[0], quiet[0]), (0, 0), loud[1] + quiet[1])
        self.assertIn(" info ", loud[1])
        self.assertNotIn(" info ", quiet[1])

    def test_num_workers_decides_how_many_workers_are_started(self):
        run_dir = self.folder / "run"
        with open(self.folder / "log.txt", "w") as log:
            run = subprocess.Popen([RINGSIDE, "run", self.recipe, "--run-dir", run_dir, "rollout.num_workers=2",
                                    "train.steps=1000000"], stdout=log, stderr=log, cwd=self.folder)
        self.addCleanup(lambda: (run.kill(), run.wait()))

        def workers() -> set[str]:
            found = set()
            for entry in pathlib.Path("/proc").iterdir():
                try:
                    words = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else []
                except OSError:
                    continue
                if str(run_dir) in words and "--worker-id" in words:
                    found.add(words[words.index("--worker-id") + 1])
            return found

        deadline = time.monotonic() + 30
        while workers() != {"worker0", "worker1"}:
            self.assertLess(time.monotonic(), deadline, (self.folder / "log.txt").read_text())
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(30), 130, (self.folder / "log.txt").read_text())

    # --- what check prints ---

    def test_what_differs_from_the_defaults_comes_first(self):
        text = self.accepted("seed=7", "--all")
        self.assertLess(text.index("rollout.group_size: 2"), text.index("optimizer.beta1"))
        self.assertLess(text.index("train.steps: 1"), text.index("model.dtype"))
        code, text = self.ringside("check", "--presets")
        self.assertEqual(code, 0, text)
        self.assertIn("dapo", text)
        self.assertIn("algorithm.clip_high: 0.28", text)


if __name__ == "__main__":
    unittest.main()
