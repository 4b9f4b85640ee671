"""Weights over the bridge into a real vLLM on the CPU, by the worker extension and by vLLM's own routes, judged by
transformers.

Guards: a set that installs in part or in the wrong places, damage that reaches the model, a model that is left in pieces
when an update fails, a second update that does not take.

Run by tools/test_vllm.sh; $VLLM_PYTHON names the Python that has vLLM. The package is installed into a folder of its own,
since vLLM finds the engine by an entry point.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import torch

import vllm_client
import weight_source

PROMPT, SAMPLES, LENGTH = [5, 17, 40, 99, 12], 4, 24
PACKAGE = vllm_client.ROOT / "rollout_bridge" / "python"


def call(url: str, path: str, body: dict | None = None) -> tuple[int, dict]:
    """Status and answer of a POST."""
    data = json.dumps(body if body is not None else {}).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        text, status = error.read(), error.code
    return status, json.loads(text or b"{}")


def sample(url: str, temperature: float) -> list[dict]:
    body = {"model": "policy", "prompt": PROMPT, "n": SAMPLES if temperature else 1, "max_tokens": LENGTH,
            "temperature": temperature, "logprobs": 0, "return_token_ids": True, "seed": 7, "ignore_eos": True}
    status, answer = call(url, "/v1/completions", body)
    if status != 200:
        raise RuntimeError(f"/v1/completions: {status} {answer}")
    return [{"prompt_ids": PROMPT, "completion_ids": choice["token_ids"], "complete": True,
             "temperature": temperature or 1.0, "logprobs": choice["logprobs"]["token_logprobs"]}
            for choice in answer["choices"]]


@torch.no_grad()
def greedy_of(model) -> list[int]:
    ids = torch.tensor([PROMPT])
    for _ in range(LENGTH):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(PROMPT):].tolist()


class Check:
    """Counts what does not hold, and says it."""

    def __init__(self):
        self.failures = 0

    def that(self, holds: bool, what: str) -> None:
        if not holds:
            self.failures += 1
            print(f"FAILED: {what}")

    def serves(self, url: str, model, name: str) -> None:
        call(url, "/reset_prefix_cache")
        self.that(vllm_client.report(name, vllm_client.differences(model, sample(url, 1.0)), vllm_client.MEAN_BOUND),
                  f"{name}: log-probs")
        self.that(sample(url, 0.0)[0]["completion_ids"] == greedy_of(model), f"{name}: greedy completion")


def rpc(url: str, method: str, arguments: dict) -> tuple[int, dict]:
    """Status, and the first worker's result or the error."""
    call(url, "/pause?mode=wait")
    status, answer = call(url, "/collective_rpc", {"method": method, "kwargs": arguments, "timeout": 90})
    call(url, "/resume")
    return status, answer["results"][0] if status == 200 else answer


def extension(check: Check, url: str, source, models) -> None:
    """Versions 1 and 2, and what has to be refused before and between them."""
    pull = "ringside_pull_weights"
    first = weight_source.published(models[1])
    good = source.hold(1, first)
    some = next(name for name in first if "v_proj.weight" in name)
    lacking = source.hold(11, {k: v for k, v in first.items() if k != some})
    misshapen = source.hold(12, first | {some: first[some].reshape(-1)})
    wrong_root = source.hold(13, first, root_hash="0" * 32)
    flipped = source.hold(14, first)
    for name, arguments, expected in (("a tensor is missing", lacking, some), ("another shape", misshapen, some),
                                      ("wrong root", wrong_root, "root hash"), ("a flipped bit", flipped, some),
                                      ("version gone", source.request(weight_source.manifest_of(15, first)), "gone"),
                                      ("another run", good | {"trainer_term": 4}, "trainer_term")):
        source.flips = {some} if arguments is flipped else set()
        status, answer = rpc(url, pull, arguments)
        check.that(status == 500, f"{name}: status {status}, expected 500: {answer}")
        print(f"{name}: {str(answer)[:200]}")
        if name == "a flipped bit":
            check.serves(url, models[0], "after a flipped bit")
        check.that(rpc(url, "ringside_weight_info", {})[1]["version"] == -1, f"{name}: a version is installed")
    source.flips = set()
    check.serves(url, models[0], "after all refusals")
    for version, model, arguments in ((1, models[1], good),
                                      (2, models[2], source.hold(2, weight_source.published(models[2])))):
        status, answer = rpc(url, pull, arguments)
        print(f"pulled: {answer}")
        manifest = weight_source.manifest_of(version, weight_source.published(model))
        check.that(status == 200 and answer.get("root_hash") == manifest["root_hash"], f"version {version}: {answer}")
        check.that(rpc(url, "ringside_weight_info", {})[1]["version"] == version, f"version {version} in weight_info")
        check.serves(url, model, f"version {version}")


def update(url: str, info: dict) -> int:
    """A weight update by vLLM's routes; the status of /update_weights."""
    call(url, "/pause?mode=wait")
    started = call(url, "/start_weight_update")[0]
    status, answer = call(url, "/update_weights", {"update_info": info})
    finished = call(url, "/finish_weight_update")[0] if status == 200 else 200
    call(url, "/resume")
    if status != 200:
        print(f"refused: {str(answer)[:200]}")
    return status if started == finished == 200 else 0


def engine(check: Check, url: str, source, models) -> None:
    """Version 3 through the engine, after updates that fail on the way; models[2] is installed."""
    check.that(call(url, "/init_weight_transfer_engine", {"init_info": {}})[0] == 200, "init_weight_transfer_engine")
    tensors = weight_source.published(models[0])
    good = source.hold(3, tensors)
    source.flips = {next(iter(tensors))}
    check.that(update(url, good) == 500, "an update with a flipped bit is refused")
    source.flips = set()
    check.serves(url, models[2], "after a refused update")
    check.that(update(url, {"address": source.address}) >= 400, "an update without a manifest is refused")
    check.serves(url, models[2], "after an unreadable update")
    check.that(update(url, good) == 200, "an update")
    check.serves(url, models[0], "version 3, by the engine")


def installed_package(folder: pathlib.Path) -> pathlib.Path:
    """The package, installed as a user would, in a folder of its own: the sources stay without build products."""
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    command = [os.environ["VLLM_PYTHON"], "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--target", folder / "site", folder / "source"], check=True)
    return folder / "site"


def main() -> int:
    check = Check()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        site = installed_package(folder)
        models = [vllm_client.save_model(folder / str(seed), seed) for seed in (1, 2, 3)]
        source = stack.enter_context(weight_source.WeightSource(f"ipc://{folder}/weights"))
        arguments = ("--worker-extension-cls", "ringside_bridge.vllm_extension.RingsideWorkerExtension",
                     "--weight-transfer-config", '{"backend": "ringside"}')
        log = folder / "server.log"
        try:
            url = stack.enter_context(vllm_client.vllm_server(folder / "1", log, arguments, (("PYTHONPATH", str(site)),)))
            check.serves(url, models[0], "as started")
            extension(check, url, source, models)
            engine(check, url, source, models)
        finally:
            if check.failures or sys.exc_info()[0]:
                print(log.read_text()[-6000:] if log.exists() else "no log")
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
