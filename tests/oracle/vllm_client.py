"""Our client of vLLM against a real vLLM on the CPU, judged by transformers.

Starts a server on a tiny random model, drives it through build/.../probe_vllm (completions at temperature 1 and 0.7,
weights of a second model loaded from disk between pause and resume, completions again), and recomputes every log-prob in
fp32. Guards: log-probs of another distribution than the sampled one, ids that were tokenized again, weights that a reload
did not reach, a prefix cache that crosses it.

Run by tools/test_vllm.sh; $VLLM_PYTHON names the Python that has vLLM.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import tokenizers
import torch
import transformers

import tiny_models

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCAB, START_TIMEOUT_S, MEAN_BOUND = 384, 600, 1e-4


def save_model(folder: pathlib.Path, seed: int):
    """A random Qwen2 with a byte-level tokenizer; returns the model."""
    config = transformers.Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=0,
        bos_token_id=0,
    )
    model = tiny_models.make_model(config, seed, 0.15)
    model.save_pretrained(folder)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = ["<eos>", *letters, *(f"<unused{i}>" for i in range(VOCAB - 1 - len(letters)))]
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens(["<eos>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>").save_pretrained(folder)
    return model


@contextlib.contextmanager
def vllm_server(model: pathlib.Path, log: pathlib.Path, arguments: tuple = (), environment: tuple = ()):
    """The URL of a vLLM that serves `model` in fp32, ended with the block. More arguments and (name, value) pairs of its
    environment may be given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [os.environ["VLLM_PYTHON"], "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "policy", "--dtype", "float32", "--enforce-eager", "--max-model-len", "256"]
    command += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", "--host", "127.0.0.1", "--port", str(port)]
    command += arguments
    settings = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    settings = os.environ | settings | dict(environment)
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=settings, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + START_TIMEOUT_S
            while not is_up(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"vLLM did not come up:\n{log.read_text()[-4000:]}")
                time.sleep(1)
            yield url
        finally:
            stop(server)


def exit_statuses(commands: list[list[str]], log: pathlib.Path, patience_s: float, **environment: str) -> list[int | None]:
    """Runs commands side by side until all have ended, one has failed or the time is over; None: ended here."""
    with open(log, "w") as output:
        running = [subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | environment) for command in commands]
        end = time.monotonic() + patience_s
        while any(one.poll() is None for one in running) and not any(one.poll() for one in running) and time.monotonic() < end:
            time.sleep(0.2)
        codes = [one.poll() for one in running]
        for one in running:
            one.kill()
    return codes


def stop(server: subprocess.Popen) -> None:
    """Ends the server's whole process group, by force after a minute."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, 15)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        os.killpg(server.pid, 9)  # whatever the server left behind
    server.wait(60)


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@torch.no_grad()
def differences(model, completions: list[dict]) -> list[float]:
    """|server's log-prob - transformers'| of every completion token."""
    found = []
    for completion in completions:
        if not completion["complete"] or len(completion["logprobs"]) != len(completion["completion_ids"]):
            raise ValueError(f"incomplete log-probs: {completion}")
        prompt, ids = completion["prompt_ids"], completion["completion_ids"]
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / completion["temperature"]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        found += (torch.tensor(completion["logprobs"]) - expected).abs().tolist()
    return found


def report(name: str, found: list[float], bound: float) -> bool:
    mean = sum(found) / len(found)
    print(f"{name}: {len(found)} tokens, log-probs {mean:.2e} apart on average, {max(found):.2e} at most")
    return mean < bound


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first, second = save_model(folder / "first", 1), save_model(folder / "second", 2)
        with vllm_server(folder / "first", folder / "server.log") as url:
            probe = ROOT / "build/tests/rollout_bridge/servers/probe_vllm"
            command = [probe, url, "policy", str(VOCAB), folder / "second"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                print(done.stderr, (folder / "server.log").read_text()[-3000:], sep="\n")
                return 1
        found = json.loads(done.stdout)
    passed = [
        report("temperature 1", differences(first, found["before"]), MEAN_BOUND),
        report("temperature 0.7", differences(first, found["tempered"]), MEAN_BOUND),
        report("other weights", differences(second, found["after"]), MEAN_BOUND),
    ]
    # The reload must have changed something, or the third line says nothing.
    crossed = sum(differences(first, found["after"])) > 1.0
    print(f"other weights give other log-probs: {'yes' if crossed else 'NO'}")
    print(f"weight version after the reload: {found['label']}")
    return 0 if all(passed) and crossed else 1


if __name__ == "__main__":
    sys.exit(main())
