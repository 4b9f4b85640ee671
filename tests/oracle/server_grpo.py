"""GRPO on a real task through an inference server that knows nothing of Ringside: `ringside train` with `ringside rollout
--server`, new weights in the server after every step, every log-prob recomputed by transformers under the version it names.

Guards: weights that a server did not take or took in part, log-probs of another distribution than the sampled one, a prefix
cache that crosses versions, rollouts that name the wrong version, a policy that does not learn through all of this.

Usage: server_grpo.py vllm|python|llama_cpp [--weights pull|engine|disk|restart|adapter] [--byte-texts] [--steps N] [--out PREFIX]
--weights adapter trains low-rank adapters and gives the server these alone; transformers then recomputes nothing, because
no version's whole weights are on disk.
Run by tools/test_vllm.sh and tools/test_llama.sh; $VLLM_PYTHON and $LLAMA_PYTHON name the Pythons that have vLLM and
llama.cpp. --byte-texts: tokens of llama.cpp that are parts of characters. --out writes PREFIX.json and PREFIX.png.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import torch
import transformers

import vllm_client
import vllm_extension

ROOT = vllm_client.ROOT
RINGSIDE = ROOT / "build" / "ringside"
RECIPE = ROOT / "recipes" / "quickstart"
MEAN_BOUND, WANTED_GAIN, VERSIONS_CHECKED = 1e-4, 0.1, 6
LEARNT_STEPS = 100  # that the gain is wanted of; fewer have to rise at all
EXTENSION = ("--worker-extension-cls", "ringside_bridge.vllm_extension.RingsideWorkerExtension")
LORA_RANK = 16
ADAPTER_SERVER = ("--enable-lora", "--max-lora-rank", str(LORA_RANK))
PACKAGE = str(ROOT / "rollout_bridge" / "python")


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def warm_start(folder: pathlib.Path) -> pathlib.Path:
    """A model that solves some prompts: demonstrations of the quickstart task, more than half of them wrong."""
    run(sys.executable, ROOT / "tools/quickstart_task.py", "--out", folder / "data", "--flawed", "--seed", 1)
    run(RINGSIDE, "train", RECIPE / "sft.yaml", "--run-dir", folder / "sft", "parallel.ulysses_parallel_size=1",
        f"model.path={folder / 'data/model'}", f"data.sft={folder / 'data/sft.jsonl'}")
    return folder / "sft" / "checkpoint-final"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_command(options) -> list[str]:
    """Keys of a worker that starts llama.cpp anew for every version."""
    if options.weights != "restart":
        return []
    program = ROOT / "tests/oracle/llama_server_bytes.py" if options.byte_texts else "-m ringside_bridge.llama_server"
    command = (f"env PYTHONPATH={PACKAGE} {os.environ['LLAMA_PYTHON']} {program} --model {{model}} --port {{port}} "
               "--context 64 --slots 16 --cpu")
    return [f"rollout.server_options.start_command={command}", "rollout.server_options.concurrency=16",
            f"rollout.server_options.probe_tolerance={MEAN_BOUND}"]


@contextlib.contextmanager
def python_server(model: pathlib.Path, log: pathlib.Path):
    port = free_port()
    command = [sys.executable, "-m", "ringside_bridge.hf_server", "--model", str(model), "--port", str(port)]
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"PYTHONPATH": PACKAGE})
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + vllm_client.START_TIMEOUT_S
            while not vllm_client.is_up(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not come up:\n{log.read_text()[-4000:]}")
                time.sleep(0.5)
            yield url
        finally:
            server.terminate()
            server.wait(60)


def start_server(kind: str, model: pathlib.Path, log: pathlib.Path, weights: str):
    if weights == "restart":
        return contextlib.nullcontext(f"http://127.0.0.1:{free_port()}")  # the worker starts it
    if kind == "python":
        return python_server(model, log)
    if weights == "engine":  # found by an entry point of an installed package
        site = vllm_extension.installed_package(log.parent)
        backend = ("--weight-transfer-config", '{"backend": "ringside"}')
        return vllm_client.vllm_server(model, log, backend, (("PYTHONPATH", str(site)),))
    arguments = {"pull": EXTENSION, "adapter": ADAPTER_SERVER}.get(weights, ())
    return vllm_client.vllm_server(model, log, arguments, (("PYTHONPATH", PACKAGE), ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")))


def train(folder: pathlib.Path, model: pathlib.Path, url: str, options) -> None:
    """Trainer and worker until the run's end; the worker must leave by itself."""
    adapter = options.weights == "adapter"
    common = [RECIPE / "grpo.yaml", f"model.path={model}", f"data.train={folder / 'data/train.jsonl'}", "seed=1"]
    common += [f"lora.rank={LORA_RANK}", "lora.publish=adapter", "optimizer.learning_rate=2e-3"] if adapter else []
    kept = [] if adapter else [f"weights.directory={folder / 'versions'}", "weights.keep=0"]
    with open(folder / "trainer.log", "w") as log, open(folder / "worker.log", "w") as worker_log:
        trainer = subprocess.Popen(
            [str(w) for w in [RINGSIDE, "train", *common, "--run-dir", folder / "run", "--steps", options.steps,
                              "parallel.ulysses_parallel_size=1", *kept, "log.rollouts=true"]], stdout=log, stderr=log)
        worker = subprocess.Popen(
            [str(w) for w in [RINGSIDE, "rollout", *common, "--run-dir", folder / "run", "--server", options.server,
                              f"rollout.server_options.url={url}", *(["rollout.server_options.model=policy"] if options.server == "vllm" else []),
                              f"rollout.server_options.weights={'auto' if adapter else options.weights}", *start_command(options)]],
            stdout=worker_log, stderr=worker_log)
        try:
            while trainer.poll() is None:
                if worker.poll() not in (None, 0):
                    raise RuntimeError("the worker died:\n" + (folder / "worker.log").read_text()[-4000:])
                time.sleep(0.2)
            codes = trainer.wait(), worker.wait(60)
        finally:
            trainer.kill()
            worker.kill()
    if codes != (0, 0):
        raise RuntimeError(f"exit {codes}:\n" + (folder / "trainer.log").read_text()[-4000:])


def recompute(folder: pathlib.Path, rollouts: list[dict]) -> dict[int, float]:
    """Mean |worker's log-prob - transformers'| of some versions' rollouts under the weights on disk of that version."""
    by_version = collections.defaultdict(list)
    for rollout in rollouts:
        [span] = rollout["versions"]
        if (span["begin"], span["end"]) != (0, len(rollout["completion_ids"])):
            raise ValueError(f"{rollout['rollout_id']}: versions {rollout['versions']}")
        by_version[rollout["trainer_term"], span["version"]].append(rollout | {"complete": True})
    chosen = sorted(by_version)[:: max(1, len(by_version) // VERSIONS_CHECKED)]
    means = {}
    for epoch, version in chosen:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder / "versions" / f"e{epoch:04d}-v{version:06d}", dtype=torch.float32)
        found = vllm_client.differences(model.eval(), by_version[epoch, version][:64])
        means[version] = sum(found) / len(found)
    return means


def plot(rewards: list[float], title: str, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(range(1, len(rewards) + 1), rewards, linewidth=1)
    axes.set(xlabel="step", ylabel="mean reward of the step", title=title)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("server", choices=["vllm", "python", "llama_cpp"])
    parser.add_argument("--weights", choices=["pull", "engine", "disk", "restart", "adapter"])
    parser.add_argument("--byte-texts", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out")
    options = parser.parse_args()
    options.weights = options.weights or ("restart" if options.server == "llama_cpp" else "pull")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = warm_start(folder)
        with start_server(options.server, model, folder / "server.log", options.weights) as url:
            began = time.monotonic()
            train(folder, model, url, options)
            seconds = time.monotonic() - began
        steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        rollouts = [json.loads(line) for line in (folder / "run/rollouts.jsonl").read_text().splitlines()]
        means = {} if options.weights == "adapter" else recompute(folder, rollouts)
    rewards = [step["reward"] for step in steps]
    tenth = max(1, len(rewards) // 10)
    first, last = sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth
    of_trainer = max(step["sampling/sampling_logp_difference/mean"] for step in steps)
    print(f"{options.server}, weights by {options.weights}: {len(steps)} steps, {len(rollouts)} rollouts in {seconds:.0f} s; "
          f"reward {first:.3f} -> {last:.3f}; log-probs at most {of_trainer:.1e} from the trainer's (mean of a step), "
          f"{max(means.values(), default=0):.1e} from transformers' (mean of a version, {len(means)} versions)")
    if options.out:
        record = {"server": options.server, "weights": options.weights, "seconds": seconds, "reward": rewards,
                  "logprob_difference_of_trainer": [s["sampling/sampling_logp_difference/mean"] for s in steps],
                  "logprob_difference_of_transformers": means, "transformers": transformers.__version__}
        pathlib.Path(options.out + ".json").write_text(json.dumps(record, indent=1) + "\n")
        plot(rewards, f"GRPO through {options.server}, weights by {options.weights}", options.out + ".png")
    good = len(steps) == options.steps and of_trainer < MEAN_BOUND and max(means.values(), default=0) < MEAN_BOUND
    wanted = WANTED_GAIN if options.steps >= LEARNT_STEPS else 0.0
    return 0 if good and last > first + wanted else 1


if __name__ == "__main__":
    sys.exit(main())
