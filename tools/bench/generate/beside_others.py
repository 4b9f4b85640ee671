"""Completions of the built-in generator beside transformers', vLLM's and llama.cpp's on the same CPU, or with --device cuda
beside transformers' on the same GPU (--bench bench_gpu_generate).

All get the same model, the same prompts of ids, the same dtype and two threads, and compute greedy completions of the same
length. Every repetition is a process of its own, one of each engine in turns: a batch to warm up, then one that counts.
Of the repetitions the median is reported. Without .env/vllm or .env/llama (`tools/setup.sh --vllm --llama`) these are left
out. llama.cpp is asked through ringside_bridge.llama_server, which writes float32 files and keeps attention in float32, a
slot for each completion. vLLM runs with its default options and prefix caching, which is emptied before each batch.

Usage: beside_others.py MODEL_DIR [--device cpu|cuda] [--dtype float32|bfloat16] [--prompts N] [--samples N] [--prompt-tokens N]
         [--new-tokens N] [--threads N] [--repetitions N] [--engines NAME,NAME] [--bench BENCH_GENERATE]
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
PYTHONS = {"transformers": ROOT / ".env/oracle/bin/python", "vllm": ROOT / ".env/vllm/bin/python",
           "llama_cpp": ROOT / ".env/llama/bin/python"}


def prompts_of(options):
    """As generate_bench.cpp makes them."""
    return [[(7 * t + 13 * (i // options.samples) + 1) % 1000 for t in range(options.prompt_tokens)]
            for i in range(options.prompts * options.samples)]


def timed(complete, options):
    """Seconds of a second batch, and the first completion of each prompt."""
    complete()
    begin = time.perf_counter()
    completions = complete()
    seconds = time.perf_counter() - begin
    assert all(len(ids) == options.new_tokens for ids in completions)
    print(json.dumps({"seconds": [seconds], "completions": completions[::options.samples]}))


def run_transformers(options):
    import torch
    import transformers
    torch.set_num_threads(options.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype),
                                                              attn_implementation="sdpa").eval().to(options.device)
    ids = torch.tensor(prompts_of(options), device=options.device)

    def complete():
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
                                 min_new_tokens=options.new_tokens, max_new_tokens=options.new_tokens)
        return out[:, options.prompt_tokens:].tolist()

    timed(complete, options)


def run_vllm(options):
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind" if options.threads > 1 else "auto"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    import vllm
    engine = vllm.LLM(str(options.model), dtype=options.dtype, max_num_seqs=options.prompts * options.samples,
                      max_model_len=options.prompt_tokens + options.new_tokens, enable_prefix_caching=True)
    sampling = vllm.SamplingParams(temperature=0, max_tokens=options.new_tokens, min_tokens=options.new_tokens,
                                   ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in prompts_of(options)]

    def complete():
        engine.reset_prefix_cache()
        return [list(answer.outputs[0].token_ids) for answer in engine.generate(prompts, sampling, use_tqdm=False)]

    timed(complete, options)


def run_llama_cpp(options):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rows = options.prompts * options.samples
    server = subprocess.Popen(
        [sys.executable, "-m", "ringside_bridge.llama_server", "--model", str(options.model), "--port", str(port), "--cpu",
         "--slots", str(rows), "--threads", str(options.threads),
         "--context", str(options.prompt_tokens + options.new_tokens + 8)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "rollout_bridge/python")}, stdout=subprocess.PIPE, text=True)
    try:
        server.stdout.readline()

        def one(ids):
            body = {"prompt": ids, "n_predict": options.new_tokens, "temperature": 0, "ignore_eos": True,
                    "return_tokens": True, "cache_prompt": False}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=3600) as answer:
                return json.load(answer)["tokens"]

        with concurrent.futures.ThreadPoolExecutor(rows) as pool:
            timed(lambda: list(pool.map(one, prompts_of(options))), options)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def answer_of(engine, options):
    if engine == "ringside":
        words = [options.bench, str(options.model), "--repetitions", "1", "--print"]
    else:
        words = [PYTHONS[engine] if PYTHONS[engine].exists() else sys.executable, __file__, str(options.model), "--run", engine]
    words += ["--device", options.device, "--dtype", options.dtype, "--prompts", options.prompts, "--samples", options.samples, "--prompt-tokens",
              options.prompt_tokens, "--new-tokens", options.new_tokens, "--threads", options.threads]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"{engine} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def compare(options):
    engines = ["ringside", *(e for e, python in PYTHONS.items() if python.exists())]
    if options.device == "cuda":  # the environments' vLLM and llama.cpp are built for CPUs
        engines = ["ringside", "transformers"]
    if options.dtype != "float32":
        engines = [engine for engine in engines if engine != "llama_cpp"]
    if options.engines:
        engines = [engine for engine in options.engines.split(",") if engine in engines]
    seconds = {engine: [] for engine in engines}
    completions = {}
    for _ in range(options.repetitions):
        for engine in engines:
            answer = answer_of(engine, options)
            seconds[engine] += answer["seconds"]
            completions[engine] = answer["completions"]
    tokens = options.prompts * options.samples * options.new_tokens
    line = {"device": options.device, "dtype": options.dtype, "prompts": options.prompts, "samples": options.samples,
            "prompt_tokens": options.prompt_tokens, "new_tokens": options.new_tokens}
    for engine in engines:
        line[engine] = {"tokens_per_s": round(tokens / statistics.median(seconds[engine]), 1),
                        "seconds": [round(s, 2) for s in seconds[engine]],
                        "equal_completions": sum(map(list.__eq__, completions[engine], completions[engines[0]]))}
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    for name, value in {"prompts": 64, "samples": 1, "prompt-tokens": 64, "new-tokens": 64, "threads": 2,
                        "repetitions": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--engines", default="")
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "build/tools/bench/bench_generate")
    parser.add_argument("--run", choices=list(PYTHONS))
    options = parser.parse_args()
    if options.run:
        {"transformers": run_transformers, "vllm": run_vllm, "llama_cpp": run_llama_cpp}[options.run](options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
