"""Runs ringside's commands and reads what they leave behind.

run() starts the processes that a user's command starts. run_in_memory() runs `logprobs` and `train` with the ranks as
threads of one process, which lives as long as the script: for grids of runs that compare numbers. A script runs each kind
of layout at least once as processes.
"""

import atexit
import functools
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import yaml

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402


def executable() -> pathlib.Path:
    """$RINGSIDE, or build/ringside. Raises FileNotFoundError when it has not been built."""
    path = pathlib.Path(os.environ.get("RINGSIDE", _ROOT / "build" / "ringside"))
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; tools/setup.sh builds it")
    return path


def run(*arguments, timeout: float = 300) -> str:
    """Runs `ringside ARGUMENTS...`, one CPU thread a rank; returns its output or raises it."""
    command = [str(executable()), *map(str, arguments)]
    done = prestarted.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        cwd=_ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode} of {' '.join(command)}\n{done.stdout}")
    return done.stdout


class _RanksInMemory:
    """The process that run_in_memory() sends its commands to."""

    def __init__(self):
        program = os.environ.get("RANKS_IN_MEMORY", executable().parent / "tests" / "oracle" / "ranks_in_memory")
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        atexit.register(self._process.kill)

    def run(self, words: list[str], timeout: float) -> str:
        self._log.seek(0)  # the process writes at the same offset
        self._log.truncate()
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        status = self._process.stdout.readline().strip() if ready else f"none within {timeout} s"
        self._log.seek(0)
        output = self._log.read()
        if status != "0":
            raise RuntimeError(f"exit status {status or self._process.wait()} of {' '.join(words)}\n{output}")
        return output


_ranks_in_memory = functools.cache(_RanksInMemory)


def run_in_memory(*arguments, timeout: float = 300) -> str:
    """As run(), with the ranks as threads of one process; `logprobs` and `train` only."""
    return _ranks_in_memory().run([*map(str, arguments)], timeout)


def read_lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_steps(run_dir: pathlib.Path) -> list[dict]:
    """The training steps of RUN_DIR/metrics.jsonl in order."""
    return [line for line in read_lines(run_dir / "metrics.jsonl") if "loss" in line]


def load_weights(model_dir: pathlib.Path) -> dict[str, torch.Tensor]:
    """Every tensor of a Hugging Face directory's safetensors files, by name."""
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no *.safetensors in {model_dir}")
    return {
        name: value for file in files for name, value in safetensors.torch.load_file(file).items()
    }


def layout(
    ring: int = 1, ulysses: int = 1, data: int = 1, tensor: int = 1, pipeline: int = 1
) -> list[str]:
    """The command-line words that select a layout of pipeline x data x ring x ulysses x tensor processes."""
    return [
        "--nproc",
        str(ring * ulysses * data * tensor * pipeline),
        f"parallel.ringattn_parallel_size={ring}",
        f"parallel.ulysses_parallel_size={ulysses}",
        f"parallel.data_parallel_replicate_size={data}",
        f"parallel.tensor_parallel_size={tensor}",
        f"parallel.pipeline_parallel_size={pipeline}",
    ]


def write_grpo_recipe(
    folder: pathlib.Path, prompts_per_step: int, group_size: int, tokens_per_micro_batch: int, **optimizer
) -> pathlib.Path:
    """A recipe for FOLDER/model: KL to the reference and two passes a step, so that old, reference and current policy
    all differ; micro-batches small enough that a step takes several."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(folder / "model")},
                "rollout": {
                    "prompts_per_step": prompts_per_step,
                    "group_size": group_size,
                    "max_completion_tokens": 64,
                },
                "algorithm": {"kl_coef": 0.04, "num_iterations": 2},
                "train": {"tokens_per_micro_batch": tokens_per_micro_batch},
                "optimizer": {"learning_rate": 1e-4, **optimizer},
            }
        )
    )
    return recipe
