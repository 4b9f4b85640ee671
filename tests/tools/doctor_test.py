"""What `ringside doctor` prints and writes, and what `ringside check` says about sequence parallelism with it.

Guards: a measurement that predictions do not use; a file of speeds that is wrong and taken; advice that is missing where
predictions speak against a layout, or given where they do not; a check that takes long for many ranks.

Usage: doctor_test.py RINGSIDE. Standard library only.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = str(pathlib.Path(sys.argv.pop(1)).resolve())
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
import quickstart_task  # noqa: E402

QWEN3_8B = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072}


def run(*words) -> subprocess.CompletedProcess:
    return prestarted.run([RINGSIDE, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120, check=False)


class DoctorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        model = cls.folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(quickstart_task.model_config() | QWEN3_8B))
        (model / "tokenizer.json").write_text(json.dumps(quickstart_task.tokenizer_json()))
        (cls.folder / "train.jsonl").write_text('{"prompt": "3>", "answer": "3"}\n')

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def check(self, tokens: int, *words) -> str:
        """The output of a check whose micro-batch is one document of so many tokens."""
        done = run("check", "--memory", "4000GiB", f"model.path={self.folder / 'model'}", "model.init=random", "model.dtype=bfloat16",
                   f"data.train={self.folder / 'train.jsonl'}", f"train.tokens_per_micro_batch={tokens}",
                   "rollout.max_prompt_tokens=16", f"rollout.max_completion_tokens={tokens - 16}", *words)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout[done.stdout.index("\na step:"):]

    def test_a_model_that_is_not_there_is_bad(self):
        done = run("doctor", "model.path=/nope", "rollout.reward=length")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("bad     model.path: /nope has no config.json; advice: `ringside check` says more", done.stdout)

    def test_versions_and_devices_are_printed(self):
        done = run("doctor")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("torch: built with", done.stdout)
        self.assertIn("cpu: 1 device", done.stdout)

    def test_limits_and_libraries_are_lines_with_advice_where_they_are_bad(self):
        text = run("doctor").stdout
        for part in ("libraries: glibc", "libzmq", "memory: ", "/dev/shm", "open files (nofile): ", "(memlock): ", "clock: 20",
                     "temporary files: ", "ports: a free port", "name of this machine: "):
            self.assertIn(part, text)
        low = subprocess.run(["bash", "-c", f"ulimit -n 64; exec {RINGSIDE} doctor"], stdout=subprocess.PIPE, text=True,
                             check=False, env={**os.environ, "TMPDIR": str(self.folder)}, timeout=60)
        self.assertEqual(low.returncode, 0, low.stdout)  # a warning stops nothing
        self.assertRegex(low.stdout, r"warning open files \(nofile\): 64; advice: .*ulimit -n")
        self.assertIn(f"ok      temporary files: {self.folder}", low.stdout)

    def test_what_a_recipe_reaches_is_tried(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            taken = server.getsockname()[1]
            done = run("doctor", f"bridge.rollout_address=tcp://127.0.0.1:{taken}", "rollout.server=vllm",
                       f"rollout.server_options.url=http://127.0.0.1:{taken}", "rollout.reward=http",
                       "rollout.reward_options.http_url=http://no-such-host.invalid/score", "model.device=cuda")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, rf"bad     bridge.rollout_address: tcp://127.0.0.1:{taken}: Address already in use; advice")
        self.assertIn("ok      bridge.weights_address: tcp://127.0.0.1:0, any free port", done.stdout)
        self.assertIn(f"ok      rollout.server_options.url: http://127.0.0.1:{taken}, answers", done.stdout)
        self.assertRegex(done.stdout, "bad     rollout.reward_options.http_url: .*no-such-host.invalid is not resolved")
        closed = run("doctor", "rollout.server=sglang", f"rollout.server_options.url=http://127.0.0.1:{taken}",
                     f"bridge.rollout_address=tcp://127.0.0.1:{taken}")
        self.assertRegex(closed.stdout, "bad     rollout.server_options.url: .*Connection refused; advice: start the server")
        self.assertIn(f"ok      bridge.rollout_address: tcp://127.0.0.1:{taken}, free on this machine", closed.stdout)

    def test_measured_speeds_are_written_and_used(self):
        output = self.folder / "speeds.json"
        done = run("doctor", "--measure", "--device", "cpu", "--output", output)
        self.assertEqual(done.returncode, 0, done.stdout)
        speeds = json.loads(output.read_text())
        self.assertEqual(speeds["device"], "CPU")
        for key in ("attention_flops_per_s", "gemm_flops_per_s", "intra_node_bytes_per_s", "memory_bytes_per_s"):
            self.assertGreater(speeds[key], 1e7, key)
            self.assertLess(speeds[key], 1e14, key)
        text = self.check(4096, "parallel.context_parallel_size=2", f"sp.device_speeds={output}")
        table = self.check(4096, "parallel.context_parallel_size=2", "sp.device_speeds=CPU")
        self.assertNotEqual(text, table)
        recipe = self.folder / "recipe.yaml"
        recipe.write_text("sp: {device_speeds: speeds.json}\n")  # relative to the recipe
        self.assertEqual(text, self.check(4096, recipe, "parallel.context_parallel_size=2"))
        recipe.write_text("sp: {device_speeds: H100}\n")
        self.assertIn("(speeds of H100)", self.check(4096, recipe, "parallel.context_parallel_size=2"))
        speeds["attention_flops_per_s"] *= 2
        output.write_text(json.dumps(speeds))
        self.assertNotEqual(text, self.check(4096, "parallel.context_parallel_size=2", f"sp.device_speeds={output}"))

    def test_wrong_speeds_are_refused(self):
        bad = self.folder / "bad.json"
        bad.write_text(json.dumps({"device": "x", "attention_flops_per_s": -1}))
        for value, expected in ((bad, "attention_flops_per_s"), ("H900", "neither a file nor a known device")):
            done = run("check", f"model.path={self.folder / 'model'}", f"data.train={self.folder / 'train.jsonl'}",
                       "parallel.context_parallel_size=2", f"sp.device_speeds={value}")
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("sp.device_speeds", done.stdout)
            self.assertIn(expected, done.stdout)

    def test_short_sequences_are_advised_against_and_long_ones_not(self):
        words = ("parallel.context_parallel_size=8", "sp.device_speeds=H100")
        self.assertIn("advice: sequences are short for 8 ranks", self.check(64, *words))
        self.assertNotIn("sequences are short", self.check(131072, *words))

    def test_axes_that_cross_nodes_are_advised_against(self):
        across = self.check(131072, "parallel.ringattn_parallel_size=16", "sp.device_speeds=H100")
        self.assertIn("advice: the ring axis crosses nodes of 8 ranks", across)
        within = self.check(131072, "parallel.ringattn_parallel_size=8", "sp.device_speeds=H100")
        self.assertNotIn("crosses nodes", within)
        self.assertIn("advice: the Ulysses axis crosses nodes",
                      self.check(131072, "parallel.ulysses_parallel_size=16", "sp.device_speeds=H100"))

    def test_the_asynchronous_form_is_advised_for_where_it_hides_exchanges(self):
        words = ("parallel.ulysses_parallel_size=8", "sp.device_speeds=L40S")
        self.assertIn("sp.async_ulysses: true is likely faster", self.check(4096, *words))
        self.assertNotIn("is likely faster", self.check(4096, *words, "sp.async_ulysses=true"))
        automatic = self.check(4096, *words, "sp.async_ulysses=auto")
        self.assertIn("sp.async_ulysses: auto is true: the asynchronous form can hide", automatic)
        self.assertNotIn("is likely faster", automatic)

    def test_models_that_exchange_synchronously_get_no_advice_on_the_asynchronous_form(self):
        words = ("parallel.ulysses_parallel_size=8", "sp.device_speeds=L40S")
        self.assertNotIn("sp.async_ulysses", self.check(4096, *words, "lora.rank=8"))
        latent = self.folder / "latent"
        latent.mkdir()
        shape = {key: value for key, value in (quickstart_task.model_config() | QWEN3_8B).items()
                 if "window" not in key and key != "layer_types"}
        (latent / "config.json").write_text(json.dumps(
            shape | {"model_type": "deepseek_v3", "num_key_value_heads": 32, "head_dim": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
                     "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8,
                     "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 2048, "n_group": 1,
                     "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0}))
        (latent / "tokenizer.json").write_text(json.dumps(quickstart_task.tokenizer_json()))
        self.assertNotIn("sp.async_ulysses", self.check(4096, *words, f"model.path={latent}"))

    def fine_tuning(self, tokens: int, *words) -> str:
        """The output of a check of supervised fine-tuning whose micro-batch has so many tokens."""
        (self.folder / "sft.jsonl").write_text('{"prompt": "3>", "completion": "3"}\n')
        done = run("check", "--memory", "4000GiB", f"model.path={self.folder / 'model'}", "model.init=random", "model.dtype=bfloat16",
                   "algorithm.task=sft", f"data.sft={self.folder / 'sft.jsonl'}",
                   f"train.tokens_per_micro_batch={tokens}", *words)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout[done.stdout.index("\na step:"):]

    def test_fine_tuning_is_planned_with_the_lengths_of_its_documents(self):
        def methods(text):
            return [line for line in text.splitlines() if line.startswith("context parallel")]

        words = ("parallel.context_parallel_size=16", "sp.device_speeds=RTX 4090")
        whole = methods(self.fine_tuning(131072, *words))
        self.assertEqual(whole, methods(self.check(131072, *words)), "documents as long as the micro-batch")
        self.assertEqual(methods(self.fine_tuning(131072, *words, "data.max_length=131072")), whole)
        short = methods(self.fine_tuning(131072, *words, "data.max_length=1024"))
        self.assertNotEqual(short, whole)
        self.assertIn("ulysses 8 x ring 2", whole[0])

    def test_many_ranks_are_checked_in_seconds(self):
        for ranks in (8, 64, 256, 1024):
            start = time.monotonic()
            self.check(131072, f"parallel.context_parallel_size={ranks}", "sp.device_speeds=H100")
            spent = time.monotonic() - start
            print(f"check of 131,072 tokens on {ranks} ranks: {spent:.2f} s", flush=True)
            self.assertLess(spent, 5.0)


if __name__ == "__main__":
    unittest.main()
