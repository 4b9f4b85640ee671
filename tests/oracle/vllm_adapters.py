"""Two adapters of one run on a real vLLM on the CPU: opposite tasks (recipes/two_adapters), each sampled under its own LoRA.

The trainer's log-probs of every sample must be those of vLLM: a request that went to the other adapter, or to the base,
shows at once, because the tasks are opposite. Both rewards must rise. tools/test_vllm.sh runs it. Without runs/arithmetic
it makes the warm start of recipes/arithmetic first.

Usage: vllm_adapters.py [--steps N] [--ringside FILE]; VLLM_PYTHON names vLLM's Python.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import vllm_client

ROOT = vllm_client.ROOT
sys.path.insert(0, str(ROOT / "recipes"))
import run as recipe_run  # noqa: E402

RECIPE = ROOT / "recipes" / "two_adapters"
SERVER = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2")
MOST_DIFFERENCE = 1e-3  # of a token's log-prob, trainer against vLLM, both in float32
WANTED_GAIN = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ringside", type=pathlib.Path, default=ROOT / "build" / "ringside")
    options = parser.parse_args()
    model = recipe_run.prepare(options.ringside, ROOT / "recipes/arithmetic", ROOT / "runs/arithmetic/data", 1)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm-adapters-"))
    subprocess.run([sys.executable, RECIPE / "make_data.py", "--out", folder / "data"], check=True)
    with vllm_client.vllm_server(model, folder / "vllm.log", SERVER,
                                 (("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True"),)) as url:
        started = time.monotonic()
        done = subprocess.run([str(word) for word in [
            options.ringside, "run", RECIPE / "grpo.yaml", "--run-dir", folder / "run", f"model.path={model}",
            f"data.train={folder / 'data/train.jsonl'}", f"train.steps={options.steps}", "rollout.server=vllm",
            f"rollout.server_options.url={url}", "rollout.server_options.model=policy"]],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seconds = time.monotonic() - started
    if done.returncode != 0:
        print(done.stdout[-4000:], folder)
        return 1
    steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    good = True
    for name in ("carry", "no_carry"):
        rewards = [step[f"adapter/{name}/reward"] for step in steps]
        first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
        most = max(step[f"adapter/{name}/sampling/sampling_logp_difference/max"] for step in steps)
        print(f"{name}: reward {first:.3f} in the first 5 steps, {last:.3f} in the last 5; log-probs differ by at most {most:.2g}")
        good = good and last > first + WANTED_GAIN and most < MOST_DIFFERENCE
    print(f"{len(steps)} steps in {seconds:.0f} s; {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
