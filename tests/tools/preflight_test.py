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
import threading
import time
import unittest

from preflight_case import POSITIONS, PROMPTS, RINGSIDE, PreflightCase


class Preflight(PreflightCase):
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

    # --- settings that only a run would refuse ---

    def test_settings_that_only_a_run_would_refuse(self):
        self.refused("rollout.top_p=0.9", expect=("rollout.top_p", "expected 1"))
        self.refused("rollout.top_k=5", expect=("rollout.top_k", "expected 0"))
        self.refused("algorithm.advantage.estimator=given", expect=("algorithm.advantage.estimator", "--rollouts"))
        self.refused("rollout.straggler_timeout_s=60", "--prime-rl", expect=("rollout.straggler_timeout_s", "whole groups"))
        self.refused("rollout.stop=zzzz;", expect=("rollout.stop", "tokens"))
        self.refused("bridge.rollout_address=tcp://0.0.0.0:7001", expect=("bridge.rollout_address", "CURVE"))
        self.refused("bridge.weights_address=localhost:7001", expect=("bridge.weights_address",))
        self.refused("bridge.curve.trainer_secret=/nope", "bridge.curve.allowed_workers=/nope2",
                     expect=("bridge.curve.trainer_secret", "/nope", "bridge.curve.allowed_workers", "/nope2"))
        self.refused("rollout.server=vllm", "rollout.server_options.url=localhost",
                     expect=("rollout.server_options.url", "http[s]://host"))
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
