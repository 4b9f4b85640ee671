"""llama.cpp's server for a Hugging Face directory, in the foreground: converts it to GGUF (float32) in a temporary file and
serves that by the package xllamacpp. What `rollout.server_options.start_command` runs where there is no llama-server:

    rollout.server=llama_cpp rollout.server_options.weights=restart
    rollout.server_options.start_command="python -m ringside_bridge.llama_server --model {model} --port {port}"

Attention and its cache are float32 as well, so that the log-probs are those of the weights. Ends on SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import tempfile

import xllamacpp

from .gguf_writer import write_gguf


def parameters(path: str, options: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.context * options.slots  # the server divides it among its slots
    params.n_gpu_layers = 0 if options.cpu else -1
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_ram_mib = 0
    params.ctx_shift = False
    params.ui = False
    params.fit_params = False
    params.warmup = False
    params.verbosity = options.verbosity
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True, help="Hugging Face directory: Qwen2, Qwen3 or Llama")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--context", type=int, default=4096, help="tokens of one prompt and its completion, at most")
    parser.add_argument("--slots", type=int, default=8, help="requests computed at a time; others wait")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="no layers on an accelerator")
    parser.add_argument("--verbosity", type=int, default=1, help="llama.cpp's: 1 = errors, 3 = all it does")
    options = parser.parse_args()
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # before the server has threads
    with tempfile.TemporaryDirectory(prefix="ringside-gguf-") as folder:
        path = pathlib.Path(folder) / "model.gguf"
        write_gguf(options.model, path)
        server = xllamacpp.Server(parameters(str(path), options))
        path.unlink()  # mapped by now; nothing is left behind when this process is killed
        print(f"llama.cpp listens at {server.listening_address}", flush=True)
        signal.sigwait(ending)


if __name__ == "__main__":
    main()
