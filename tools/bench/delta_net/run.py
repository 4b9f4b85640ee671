"""The chunked gated delta rule beside transformers' torch path: milliseconds of forward and backward by length.

Usage: run.py BENCH_DELTA_NET [--heads 8] [--dim 128] [--threads 2] [--lengths 512 1024 2048 4096]
"""
import argparse
import subprocess
import time

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

REPEATS = 3


def transformers_milliseconds(heads: int, dim: int, length: int) -> float:
    torch.manual_seed(1)
    unit = lambda x: (x / x.norm(dim=-1, keepdim=True)).detach().requires_grad_()  # noqa: E731
    query, key = unit(torch.randn(1, length, heads, dim)), unit(torch.randn(1, length, heads, dim))
    value = torch.randn(1, length, heads, dim, requires_grad=True)
    decay = (-0.1 * torch.rand(1, length, heads)).requires_grad_()
    strength = torch.rand(1, length, heads, requires_grad=True)
    gradient = torch.randn(1, length, heads, dim)
    best = float("inf")
    for _ in range(REPEATS):
        begin = time.perf_counter()
        torch_chunk_gated_delta_rule(query, key, value, decay, strength)[0].backward(gradient)
        best = min(best, (time.perf_counter() - begin) * 1e3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    words = [options.bench, options.heads, options.dim, options.threads, *options.lengths]
    lines = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout
    ours = {int(length): float(took) for length, took in (line.split() for line in lines.splitlines())}
    print(f"{options.heads} heads of {options.dim} x {options.dim}, {options.threads} threads, fp32, forward and backward")
    print(f"{'tokens':>8}{'ours ms':>12}{'us a token':>12}{'transformers ms':>18}{'ratio':>8}")
    for length, took in ours.items():
        theirs = transformers_milliseconds(options.heads, options.dim, length)
        print(f"{length:>8}{took:>12.1f}{took / length * 1e3:>12.2f}{theirs:>18.1f}{theirs / took:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
