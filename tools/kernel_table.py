#!/usr/bin/env python3
"""What nvcc makes of our CUDA kernels, without a GPU: registers, shared memory, occupancy, spills; and the least time that the
memory of a GPU allows for the kernels of one layer.

Usage: kernel_table.py [--arch sm_90] ... [--config config.json] [--nvcc PATH] [FILE.cu ...]
  --arch    an architecture, several times for several; default sm_80, sm_90 and sm_100
  --config  a model's config.json for the second table; default: the shape of Qwen3-0.6B
  --nvcc    default: nvcc of PATH or of /usr/local/cuda/bin
  FILE.cu   default: every .cu file of engine/ and sp/

Prints two Markdown tables. Exits 1 when a kernel spills registers or has a stack, and names it.

The limits of the occupancy are those of the CUDA C++ Programming Guide, table "Technical Specifications per Compute
Capability"; registers are given to a warp 256 at a time. Bandwidths: NVIDIA's data sheets of the A100 80GB SXM (2,039 GB/s),
H100 SXM (3.35 TB/s), H200 (4.8 TB/s) and of DGX B200 (64 TB/s for eight).
"""
import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BANDWIDTH = {'A100': 2.039e12, 'H100': 3.35e12, 'H200': 4.8e12, 'B200': 8.0e12}
# Shared memory of a multiprocessor in KiB; every block takes one more.
SHARED_KIB = {'sm_80': 164, 'sm_90': 228, 'sm_100': 228}
WARPS, BLOCKS, REGISTERS = 64, 32, 65536
QWEN3_600M = {'hidden_size': 1024, 'intermediate_size': 3072, 'num_attention_heads': 16, 'num_key_value_heads': 8,
              'head_dim': 128, 'vocab_size': 151936, 'qk_norm': True}


@dataclasses.dataclass
class Kernel:
    """One instance of a kernel, as ptxas describes it."""
    arch: str
    name: str
    registers: int = 0
    shared: int = 0
    spilled: int = 0
    stack: int = 0


def parsed(arch: str, log: str) -> list[Kernel]:
    """The kernels in what `ptxas -v` says."""
    kernels = []
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernels.append(Kernel(arch, match[1]))
        elif match := re.search(r'(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads', line):
            kernels[-1].stack, kernels[-1].spilled = int(match[1]), int(match[2]) + int(match[3])
        elif match := re.search(r'Used (\d+) registers', line):
            kernels[-1].registers = int(match[1])
            shared = re.search(r'(\d+) bytes smem', line)
            kernels[-1].shared = int(shared[1]) if shared else 0
    return kernels


def compiled(nvcc: str, arch: str, file: pathlib.Path) -> list[Kernel]:
    headers = [str(path) for path in ROOT.glob('.env/*/lib/python3*/site-packages/torch/include')][:1]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [nvcc, '-std=c++17', '-O3', '-cubin', f'-arch={arch}', '-Xptxas', '-v', '-I', str(ROOT),
             *(f'-isystem={path}' for path in headers), str(file), '-o', f'{folder}/out.cubin'],
            capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f'{file} for {arch}: {done.stderr}')
    return parsed(arch, done.stdout + done.stderr)


def readable(names: list[str]) -> list[str]:
    """`norm_kernel<bf16, float, 8>` of each mangled name, where there is c++filt."""
    if not shutil.which('c++filt') or not names:
        return names
    lines = subprocess.run(['c++filt', '-p'], input='\n'.join(names), capture_output=True, text=True, check=True).stdout
    short = []
    for line in lines.splitlines():
        line = re.sub(r'\((anonymous namespace|int)\)(::)?', '', re.sub(r'^void ', '', line))
        line = line.replace('c10::BFloat16', 'bf16').replace('__nv_bfloat16', 'bf16').replace('c10::Half', 'half')
        line = line.replace('__half', 'half').replace('unsigned char', '1 byte').replace('unsigned int', '4 bytes')
        line = line.replace('uint4', '16 bytes').replace('(bool)1', 'merge').replace('(bool)0', 'write')
        short.append(re.sub(r'^(\w+::)+', '', line))
    return short


def shape_of_block(name: str, shape: dict) -> tuple[int, int]:
    """Threads of a block, and the memory that the launch asks for, at the model's sizes: as the .cu files choose them."""
    acc = 8 if 'double, double' in name else 4
    width = int(match[1]) if (match := re.search(r'(\d+)>$', name)) else 1

    def for_row(size: int) -> int:
        return min(max(-(-(-(-size // width)) // 32), 1), 16) * 32
    if name.startswith('norm_kernel'):
        return for_row(shape['hidden_size']), 0
    if name.startswith('norm_grad_kernel'):
        return for_row(shape['hidden_size']), shape['hidden_size'] * acc
    if name.startswith('score'):
        return for_row(shape['vocab_size']), 0
    if name.startswith('rotation_grad_kernel'):
        return 256, 16 * shape['head_dim'] * acc
    return 256, 0


def occupancy(kernel: Kernel, threads: int, dynamic: int) -> float:
    """Warps that a multiprocessor holds, of those that it could."""
    warps = threads // 32
    registers = -(-kernel.registers * 32 // 256) * 256 * warps
    shared = kernel.shared + dynamic + 1024
    blocks = min(BLOCKS, WARPS // warps, REGISTERS // registers, SHARED_KIB[kernel.arch] * 1024 // shared)
    return blocks * warps / WARPS


def print_kernels(kernels: list[Kernel], names: list[str], shape: dict) -> None:
    archs = sorted({kernel.arch for kernel in kernels}, key=lambda arch: int(arch[3:]))
    rows: dict[str, dict[str, Kernel]] = {}
    for kernel, name in zip(kernels, names):
        rows.setdefault(name, {})[kernel.arch] = kernel
    print('| kernel | threads | shared memory: arrays, launch | ' + ' | '.join(f'{a}: registers, occupancy' for a in archs) + ' |')
    print('|---|---|---|' + '---|' * len(archs))
    for name, by_arch in sorted(rows.items()):
        threads, dynamic = shape_of_block(name, shape)
        first = next(iter(by_arch.values()))
        cells = [f'{k.registers}, {occupancy(k, threads, dynamic):.2f}' if (k := by_arch.get(arch)) else '' for arch in archs]
        print(f'| `{name}` | {threads} | {first.shared}, {dynamic} | ' + ' | '.join(cells) + ' |')


def bytes_of_layer(shape: dict) -> dict[str, int]:
    """Bytes that the kernels of a layer must read and write for one token in bf16: each tensor once, weights not counted."""
    hidden, mlp, heads = shape['hidden_size'], shape['intermediate_size'], shape['num_attention_heads']
    keys, dim = shape['num_key_value_heads'], shape['head_dim']
    rotated, rstd = heads + keys, 4
    of_heads = 4 * (rotated if shape['qk_norm'] else 0)
    return {
        '2 norms with addition, forward': 2 * (2 * hidden * 4 + rstd),
        'norm and rotation of heads, forward': 2 * rotated * dim * 2 + 2 * dim + of_heads,
        'SwiGLU, forward': 2 * 3 * mlp,
        '2 norms, backward': 2 * (2 * hidden * 4 + rstd),
        'norm and rotation of heads, backward': 2 * (3 * rotated + 2 * keys) * dim + 2 * dim + of_heads,
        'SwiGLU, backward': 2 * 5 * mlp,
    }


def print_layer(shape: dict) -> None:
    print('\n| kernels of a layer, bf16 | bytes a token | ' + ' | '.join(f'{name}: us for 1,000 tokens' for name in BANDWIDTH) + ' |')
    print('|---|---|' + '---|' * len(BANDWIDTH))
    parts = bytes_of_layer(shape)
    for name, count in [*parts.items(), ('all of a layer', sum(parts.values()))]:
        print(f'| {name} | {count:,} | ' + ' | '.join(f'{count * 1000 / speed * 1e6:.1f}' for speed in BANDWIDTH.values()) + ' |')
    logits = 2 * shape['vocab_size']
    print(f'| token scores, forward and backward, once a model | {3 * logits:,} | ' + ' | '.join(
        f'{3 * logits * 1000 / speed * 1e6:.1f}' for speed in BANDWIDTH.values()) + ' |')


def shape_of(config: pathlib.Path | None) -> dict:
    if config is None:
        return QWEN3_600M
    given = json.loads(config.read_text())
    shape = {key: given.get(key) for key in QWEN3_600M}
    shape['num_key_value_heads'] = shape['num_key_value_heads'] or given['num_attention_heads']
    shape['head_dim'] = shape['head_dim'] or given['hidden_size'] // given['num_attention_heads']
    shape['qk_norm'] = given.get('model_type', '').startswith('qwen3')
    return shape


def find_nvcc(given: str | None) -> str:
    found = given or shutil.which('nvcc') or shutil.which('/usr/local/cuda/bin/nvcc')
    if not found:
        raise RuntimeError('nvcc not found; tools/setup.sh --cuda installs one, or name it with --nvcc')
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--arch', action='append', choices=list(SHARED_KIB))
    parser.add_argument('--config', type=pathlib.Path)
    parser.add_argument('--nvcc')
    parser.add_argument('files', nargs='*', type=pathlib.Path)
    options = parser.parse_args()
    try:
        nvcc, shape = find_nvcc(options.nvcc), shape_of(options.config)
        files = options.files or sorted(path for top in ('engine', 'sp') for path in (ROOT / top).rglob('*.cu'))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(lambda job: compiled(nvcc, *job), [(a, f) for a in options.arch or SHARED_KIB for f in files]))
    except RuntimeError as error:
        print(f'kernel_table: error: {error}', file=sys.stderr)
        return 2
    kernels = [kernel for part in parts for kernel in part]
    names = readable([kernel.name for kernel in kernels])
    print_kernels(kernels, names, shape)
    print_layer(shape)
    bad = [(kernel, name) for kernel, name in zip(kernels, names) if kernel.spilled or kernel.stack]
    for kernel, name in bad:
        print(f'kernel_table: {name} for {kernel.arch}: {kernel.spilled} bytes of spilled registers, {kernel.stack} bytes of stack',
              file=sys.stderr)
    return 1 if bad or not kernels else 0


if __name__ == '__main__':
    sys.exit(main())
