"""An agent behind the gateway of a worker that drives a real llama.cpp on the CPU, started anew for every version of the
weights; the trainer recomputes every log-prob.

Guards: tokens of a session that are not the server's, turns that are encoded again before they go to a server, and new
weights that a session's next turn does not get.

Run by tools/test_llama.sh; $LLAMA_PYTHON names the Python that has xllamacpp.
"""

import os
import pathlib
import sys
import tempfile

import server_grpo
import vllm_harness

MEAN_BOUND = 1e-4  # of the mean difference of log-probs in a step


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        vllm_harness.save_model(folder / "model")
        command = (f"env PYTHONPATH={server_grpo.PACKAGE} {os.environ['LLAMA_PYTHON']} -m ringside_bridge.llama_server "
                   "--model {model} --port {port} --context 512 --slots 16 --cpu")
        served = ["--server", "llama_cpp", f"rollout.server_options.url=http://127.0.0.1:{server_grpo.free_port()}",
                  "rollout.server_options.weights=restart", f"rollout.server_options.start_command={command}",
                  "rollout.server_options.concurrency=16", f"rollout.server_options.probe_tolerance={MEAN_BOUND}"]
        published = [f"weights.directory={folder / 'versions'}", "weights.keep=0"]
        return 0 if vllm_harness.train(folder, "llama.cpp", served, MEAN_BOUND, published) else 1


if __name__ == "__main__":
    sys.exit(main())
