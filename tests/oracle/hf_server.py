"""ringside_bridge.hf_server against plain transformers: log-probs, truncated sampling, seeds, weights, refusals.

Guards: padding that leaks into a short prompt, log-probs of another distribution than the sampled one, samples that depend
on what else is in the batch, weights that install in part or although damaged, a completion of two versions.
"""

import concurrent.futures
import contextlib
import copy
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import numpy as np
import peft
import safetensors.torch
import torch
import zmq

import tiny_models
import weight_source

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "rollout_bridge" / "python"
PROMPTS = [[5, 17, 40, 90, 12], [3], [7] * 40, [60, 2, 33], list(range(2, 20))]


@contextlib.contextmanager
def running(model: pathlib.Path):
    """The URL of a server on `model`, ended with the block."""
    command = [sys.executable, "-m", "ringside_bridge.hf_server", "--model", str(model)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(PACKAGE)})
    try:
        line = server.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the server said '{line}'")
        yield line.split()[-1]
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()


def call(url: str, path: str, body: dict | bytes | None = None) -> tuple[int, dict]:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@torch.no_grad()
def distribution(model, prompt: list[int], completion: list[int], temperature=1.0, top_p=1.0, top_k=0) -> np.ndarray:
    """[C, V] probabilities of each position, cut and renormalised token by token as the definitions read."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1:-1].double() / temperature
    rows = logits.softmax(-1).numpy()
    if top_p == 1 and top_k == 0:
        return rows
    for row in rows:
        order = sorted(range(row.size), key=lambda i: (-row[i], i))
        row[order[top_k or row.size:]] = 0
        row /= row.sum()
        share, kept = 0.0, []
        for token in order:
            if share >= top_p and top_p < 1:
                break
            kept.append(token)
            share += row[token]
        row[[i for i in range(row.size) if i not in kept]] = 0
        row /= row.sum()
    return rows


class Server(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = tiny_models.make_config("qwen2", 4, 2, tied=True)
        cls.models = [tiny_models.make_model(config, seed) for seed in (1, 2)]
        for model, name in zip(cls.models, ("a", "b")):
            model.generation_config.eos_token_id = tiny_models.EOS
            tiny_models.save(model, cls.folder / name)
        cls.url = stack.enter_context(running(cls.folder / "a"))

    def test_adapter(self):
        adapted = peft.get_peft_model(copy.deepcopy(self.models[0]), peft.LoraConfig(
            r=3, lora_alpha=5, target_modules=["q_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(torch.randn(parameter.shape) * 0.3)
        adapted.save_pretrained(self.folder / "adapter")
        merged = adapted.merge_and_unload()
        merged.generation_config.eos_token_id = tiny_models.EOS
        load = lambda name, version: call(self.url, "/load_adapter", {"path": str(self.folder / name), "version": version})
        self.assertEqual(load("adapter", 3), (200, {"version": 3}))
        self.assert_serves(merged, 3)
        self.assertEqual(load("adapter", 4), (200, {"version": 4}))  # in place of the first, not on top of it
        self.assert_serves(merged, 4)
        config = json.loads((self.folder / "adapter" / "adapter_config.json").read_text())
        factors = safetensors.torch.load_file(self.folder / "adapter" / "adapter_model.safetensors")
        some = next(iter(factors))
        for name, fields, tensors in (("use_dora", {"use_dora": True}, {}), ("another_shape", {}, {some: torch.zeros(2, 2)}),
                                      ("tensors", {}, {"x": torch.zeros(1)})):
            (self.folder / name).mkdir()
            (self.folder / name / "adapter_config.json").write_text(json.dumps(config | fields))
            safetensors.torch.save_file(factors | tensors, self.folder / name / "adapter_model.safetensors")
            status, answer = load(name, 5)
            self.assertEqual(status, 400, answer)
        self.assertEqual(load("no-adapter", 5)[0], 400)
        self.assert_serves(merged, 4)
        self.assertEqual(self.load("b", 7)[0], 200)  # whole weights drop it
        self.assert_serves(self.models[1], 7)

    def setUp(self):
        self.assertEqual(self.load("a", 0)[0], 200)

    def load(self, name: str, version: int) -> tuple[int, dict]:
        return call(self.url, "/load", {"path": str(self.folder / name), "version": version})

    def generate(self, requests: list[dict]) -> list[dict]:
        status, answer = call(self.url, "/generate", {"requests": requests})
        self.assertEqual(status, 200, answer)
        return answer["results"]

    def assert_sampled_from(self, model, requests: list[dict], results: list[dict]):
        for request, result in zip(requests, results, strict=True):
            ids = result["completion_ids"]
            shares = distribution(model, request["prompt_ids"], ids,
                                  *(request[k] for k in ("temperature", "top_p", "top_k")))[range(len(ids)), ids]
            self.assertGreater(shares.min(), 0, "a token that was cut off was sampled")
            np.testing.assert_allclose(result["logprobs"], np.log(shares), atol=2e-5)
            self.assertEqual(result["finish_reason"], "stop" if ids[-1] == tiny_models.EOS else "length")
            self.assertTrue(len(ids) == request["max_tokens"] or ids[-1] == tiny_models.EOS)

    def requests(self, **settings) -> list[dict]:
        base = {"max_tokens": 24, "temperature": 1.0, "top_p": 1.0, "top_k": 0} | settings
        return [base | {"prompt_ids": prompt, "seed": 10 + i, "max_tokens": base["max_tokens"] + i}
                for i, prompt in enumerate(PROMPTS)]

    def test_logprobs_are_those_of_the_sampled_distribution(self):
        for settings in ({}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-300},
                         {"temperature": 1.5, "top_k": 20, "top_p": 0.6}, {"top_k": 10**6}):
            with self.subTest(settings):
                requests = self.requests(**settings)
                self.assert_sampled_from(self.models[0], requests, self.generate(requests))
        mixed = [self.requests(**settings)[i] for i, settings in
                 enumerate(({}, {"top_k": 3}, {"temperature": 0.5}, {"top_p": 0.5}, {"top_k": 7, "top_p": 0.9}))]
        self.assert_sampled_from(self.models[0], mixed, self.generate(mixed))

    def test_a_seed_is_a_sample_in_any_batch(self):
        requests = self.requests()
        together = [r["completion_ids"] for r in self.generate(requests)]
        self.assertEqual([r["completion_ids"] for r in self.generate(requests)], together)
        self.assertEqual([self.generate([r])[0]["completion_ids"] for r in requests], together)
        self.assertEqual([r["completion_ids"] for r in self.generate(requests[::-1])][::-1], together)
        other = self.generate([r | {"seed": r["seed"] + 100} for r in requests])
        self.assertTrue(all(o["completion_ids"] != t for o, t in zip(other, together)))

    def test_callers_at_once_get_their_own(self):
        requests = [r | {"seed": r["seed"] + 100 * i} for i in range(8) for r in self.requests()]
        alone = [self.generate([r])[0]["completion_ids"] for r in requests]
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            bad = pool.submit(call, self.url, "/generate", {"requests": [requests[0] | {"max_tokens": 0}]})
            together = list(pool.map(lambda r: self.generate([r])[0]["completion_ids"], requests))
        self.assertEqual(together, alone)
        self.assertEqual(bad.result()[0], 400)

    def test_stop_ids(self):
        request = self.requests(max_tokens=60)[0]
        free = self.generate([request])[0]["completion_ids"]
        stop = free[9]
        got = self.generate([request | {"stop_ids": [stop, 50]}])[0]
        at = min(free.index(token) for token in (stop, 50) if token in free)
        self.assertEqual((got["completion_ids"], got["finish_reason"]), (free[:at + 1], "stop"))

    @torch.no_grad()
    def test_score(self):
        rng = np.random.default_rng(0)
        rows = [rng.integers(2, tiny_models.VOCAB, length).tolist() for length in (1, 2, 30, 2100)]
        status, answer = call(self.url, "/score", {"requests": [{"ids": row} for row in rows]})
        self.assertEqual(status, 200, answer)
        for row, result in zip(rows, answer["results"], strict=True):
            expected = self.models[0](torch.tensor([row])).logits[0, :-1].log_softmax(-1)
            expected = expected.gather(1, torch.tensor(row[1:], dtype=torch.int64)[:, None])[:, 0]
            np.testing.assert_allclose(result["logprobs"], expected.numpy(), atol=2e-5)

    def assert_serves(self, model, version: int):
        requests = self.requests()
        results = self.generate(requests)
        self.assert_sampled_from(model, requests, results)
        self.assertEqual({r["version"] for r in results}, {version})
        self.assertEqual(call(self.url, "/health"), (200, {"status": "ok", "version": version}))

    def test_load(self):
        self.assertEqual(self.load("b", 7), (200, {"version": 7}))
        self.assert_serves(self.models[1], 7)
        tensors = weight_source.published(self.models[0])
        some = next(name for name in tensors if "v_proj.weight" in name)
        for name, wrong in (("missing", {k: v for k, v in tensors.items() if k != some}),
                            ("more", tensors | {"another": torch.zeros(2)}),
                            ("shape", tensors | {some: tensors[some].T.contiguous()}),
                            ("kind", tensors | {some: tensors[some].to(torch.int32)}),
                            ("head", tensors | {"lm_head.weight": torch.zeros_like(tensors["model.embed_tokens.weight"])})):
            (self.folder / name).mkdir()
            safetensors.torch.save_file(wrong, self.folder / name / "model.safetensors")
            status, answer = self.load(name, 8)
            self.assertEqual(status, 400, answer)
            self.assertRegex(answer["error"], {"more": "another", "head": "lm_head"}.get(name, some))
        self.assertEqual(self.load("none", 8)[0], 400)
        self.assert_serves(self.models[1], 7)

    def test_pull(self):
        tensors = weight_source.published(self.models[1])
        with weight_source.WeightSource() as source:
            source.damaged = 1  # asked for again
            request = source.hold(3, tensors)
            status, answer = call(self.url, "/pull", request)
            self.assertEqual((status, answer), (200, {"version": 3, "root_hash":
                                                      weight_source.manifest_of(3, tensors)["root_hash"]}))
            self.assert_serves(self.models[1], 3)
            bf16 = {k: v.bfloat16() for k, v in weight_source.published(self.models[0]).items()}
            self.assertEqual(call(self.url, "/pull", source.hold(4, bf16))[0], 200)
            rounded = tiny_models.make_model(self.models[0].config, 1)
            rounded.load_state_dict({k: v.bfloat16().float() for k, v in rounded.state_dict().items()})
            self.assert_serves(rounded, 4)

    def test_pull_refuses(self):
        tensors = weight_source.published(self.models[1])
        some = next(name for name in tensors if "norm" in name)
        with weight_source.WeightSource() as source:
            good = source.hold(3, tensors)
            lacking = source.hold(4, {k: v for k, v in tensors.items() if k != some})
            gone = source.request(weight_source.manifest_of(9, tensors))
            wrong_root = source.hold(5, tensors, root_hash="0" * 32)
            source.flips, source.damaged = {some}, 0
            cases = [(good, 502, f"version 3.*{some}.*expected"), (gone, 502, "version 9.*gone"),
                     (wrong_root, 400, "root hash"), (good | {"trainer_term": 4}, 400, "trainer_term"),
                     (good | {"address": "tcp://10.0.0.1:5"}, 400, "keys"),
                     (good | {"address": "tcp://127.0.0.1:x"}, 400, "127.0.0.1:x"), (good | {"server_key": "x"}, 400, "together"),
                     (good | {"manifest": "AAAA"}, 400, "manifest"), (good | {"timeout_s": 0.0}, 400, "timeout_s")]
            for body, status, pattern in cases:
                got, answer = call(self.url, "/pull", body)
                self.assertEqual(got, status, answer)
                self.assertRegex(answer["error"], pattern)
            source.flips = set()
            got, answer = call(self.url, "/pull", lacking)
            self.assertEqual((got, some in answer["error"]), (400, True), answer)
            source.silent = True
            got, answer = call(self.url, "/pull", good | {"timeout_s": 1.0})
            self.assertEqual((got, "tensors are missing" in answer["error"]), (504, True), answer)
        self.assert_serves(self.models[0], 0)

    def test_pull_with_keys(self):
        server, (_, secret) = zmq.curve_keypair(), zmq.curve_keypair()
        path = self.folder / "worker.key"
        path.write_text(secret.decode() + "\n")
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        with weight_source.WeightSource(curve=server) as source:
            request = source.hold(6, weight_source.published(self.models[1])) | {
                "server_key": server[0].decode(), "secret_key_file": str(path)}
            self.assertEqual(call(self.url, "/pull", request)[0], 200)
            self.assert_serves(self.models[1], 6)
            stranger = request | {"server_key": zmq.curve_keypair()[0].decode(), "timeout_s": 1.0}
            self.assertEqual(call(self.url, "/pull", stranger)[0], 504)

    def test_no_completion_of_two_versions(self):
        stop, failures = threading.Event(), []

        def swap():
            version = 0
            while not stop.wait(0.05):  # without a pause the two would mostly wait for Python's lock
                version += 1
                if self.load("ab"[version % 2], version)[0] != 200:
                    failures.append(version)

        swapper = threading.Thread(target=swap)
        swapper.start()
        try:
            requests, seen = self.requests(), set()
            for _ in range(10):
                results = self.generate(requests)
                seen |= {r["version"] for r in results}
                self.assert_sampled_from(self.models[results[0]["version"] % 2], requests, results)
        finally:
            stop.set()
            swapper.join()
        self.assertEqual(failures, [])
        self.assertGreater(len(seen), 2)

    def test_bad_requests(self):
        good = self.requests()[0]
        for field, values in {"prompt_ids": ([], [97], [-1], [1.5], "5", [True], None), "max_tokens": (0, 5000, "3", None),
                              "temperature": (0, -1.0, "1"), "top_p": (0, 1.1), "top_k": (-1, 1.5, 2**63), "stop_ids": ([97], 5),
                              "seed": (-1, 2**64), "other": (1,)}.items():
            for value in values:
                status, answer = call(self.url, "/generate", {"requests": [good, good | {field: value}]})
                self.assertEqual(status, 400, (field, value, answer))
                self.assertIn(field, answer["error"])
        for path, body in (("/generate", b"{"), ("/generate", {"requests": 5}), ("/generate", b"[]"), ("/load", {}),
                           ("/score", {"requests": [{"ids": [97]}]}), ("/pull", {}), ("/load", {"path": "/", "version": 1.0}),
                           ("/load", {"path": str(self.folder / "b"), "version": -1})):
            self.assertEqual(call(self.url, path, body)[0], 400, (path, body))
        self.assertEqual(call(self.url, "/nothing", {})[0], 404)
        self.assertEqual(call(self.url, "/info"), (200, {"vocab_size": tiny_models.VOCAB, "model_type": "qwen2",
                                                         "max_positions": 4096}))
        self.assertEqual(self.generate([]), [])

    def test_binds_this_machine_only(self):
        command = [sys.executable, "-m", "ringside_bridge.hf_server", "--model", "/none", "--host", "0.0.0.0"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(PACKAGE)}, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--allow-remote", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
