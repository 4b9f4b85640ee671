"""Our conversion to GGUF and llama.cpp's server, judged by transformers: log-probs of sampled completions of the three kinds
of models, and what comes back where tokens are parts of characters.

Guards: a projection whose rows are in another order, RoPE scaling left out, a cache in half precision, an end of sequence
that is not among the ids, log-probs that stand at the wrong tokens.

Run by tools/test_llama.sh; $LLAMA_PYTHON names the Python that has xllamacpp.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

import server_grpo
import tiny_models
import vllm_client

MEAN_BOUND, SAMPLES, LENGTH = 1e-5, 24, 40
FAMILIES = (("qwen2", 4, 2, True), ("qwen3", 6, 2, False), ("llama", 4, 4, True), ("llama", 4, 2, False))
BYTES = vllm_client.ROOT / "tests/oracle/llama_server_bytes.py"


@contextlib.contextmanager
def serving(model: pathlib.Path, *program: str):
    port = server_grpo.free_port()
    command = [os.environ["LLAMA_PYTHON"], *program, "--model", str(model), "--port", str(port), "--context", "256",
               "--slots", "4", "--cpu"]
    server = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": server_grpo.PACKAGE}, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while not vllm_client.is_up(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"llama.cpp did not come up: {server.poll()}")
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def sample(url: str, prompt: list[int], seed: int) -> dict:
    body = {"prompt": prompt, "n_predict": LENGTH, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
            "samplers": ["temperature"], "repeat_penalty": 1.0, "n_probs": 1, "post_sampling_probs": False,
            "return_tokens": True, "cache_prompt": False, "seed": seed, "stream": False}
    request = urllib.request.Request(url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found = json.loads(answer.read())
    entries = found["completion_probabilities"]
    return {"prompt_ids": prompt, "completion_ids": found["tokens"], "temperature": 1.0, "stop": found["stop_type"],
            "logprobs": [entry["logprob"] for entry in entries],
            "complete": [entry["id"] for entry in entries] == found["tokens"]}


def samples(url: str) -> list[dict]:
    return [sample(url, [5, 17, 40, 2 + seed], seed) for seed in range(SAMPLES)]


def main() -> int:
    good = True
    with tempfile.TemporaryDirectory() as name:
        for i, (family, heads, kv_heads, tied) in enumerate(FAMILIES):
            folder = pathlib.Path(name) / str(i)
            model = tiny_models.make_model(tiny_models.make_config(family, heads, kv_heads, tied), i, 0.2)
            model.save_pretrained(folder)
            with serving(folder, "-m", "ringside_bridge.llama_server") as url:
                found = samples(url)
            stopped = [f["completion_ids"][-1] for f in found if f["stop"] == "eos"]
            good &= vllm_client.report(f"{family} {heads}/{kv_heads}, {len(stopped)} of {SAMPLES} ended",
                                       vllm_client.differences(model, found), MEAN_BOUND)
            good &= len(stopped) > 0 and set(stopped) == {tiny_models.EOS}
        with serving(folder, str(BYTES)) as url:
            broken = sum(not f["complete"] for f in samples(url))
        print(f"parts of characters: {broken} of {SAMPLES} completions without all log-probs")
        good &= broken > 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
