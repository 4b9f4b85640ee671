"""A teacher on a real vLLM on the CPU beside the same model in the trainer.

Starts a server on a tiny random model and trains one step on recorded rollouts, `ringside train`, once with the server as the
teacher and once with the model's directory: the divergence by the sampled tokens, the divergence over the teacher's most likely
tokens and its gradient norm must be equal to the noise of fp32. Also with ranks side by side. Guards: log-probs of another
distribution or at another token than the trainer's own teacher has, and a `top_k` whose tokens are not the same.

Run by tools/test_vllm.sh; $VLLM_PYTHON names the Python that has vLLM.
"""

import json
import pathlib
import random
import sys
import tempfile

import ringside_cli
import vllm_client
import yaml

BOUND, GROUP, GROUPS = 1e-4, 4, 4
CASES = [{"over": "sampled_token"}, {"over": "top_k", "top_k": 8, "divergence": "jensen_shannon"}]
LAYOUTS = [[], ["parallel.ringattn_parallel_size=2"], ["parallel.tensor_parallel_size=2"]]


def recorded() -> str:
    """Lines of random completions, with log-probs that count for nothing here."""
    draw, lines = random.Random(7), []
    for group in range(GROUPS):
        prompt = [draw.randrange(2, vllm_client.VOCAB) for _ in range(draw.randrange(3, 20))]
        for _ in range(GROUP):
            completion = [draw.randrange(2, vllm_client.VOCAB) for _ in range(draw.randrange(2, 30))]
            line = {"group_id": group, "prompt_ids": prompt, "completion_ids": completion, "logprobs": [-6.0] * len(completion)}
            lines.append(json.dumps(line | {"reward": draw.random(), "finish_reason": "length"}))
    return "\n".join(lines) + "\n"


def step_of(folder: pathlib.Path, teacher: str, keys: dict, layout: list[str]) -> list[float]:
    """kl, divergence and gradient norm of one step."""
    recipe = folder / "recipe.yaml"
    distillation = {"teacher": teacher, **keys} | ({"server_model": "policy"} if teacher.startswith("http") else {})
    recipe.write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(folder / "policy"), "dtype": "float32"},
                "rollout": {"prompts_per_step": GROUPS, "group_size": GROUP, "max_completion_tokens": 32},
                "algorithm": {"preset": "opd", "distillation": distillation},
            }
        )
    )
    run_dir = pathlib.Path(tempfile.mkdtemp(dir=folder))
    ringside_cli.run_in_memory(
        "train", recipe, "--rollouts", folder / "rollouts.jsonl", "--steps", 1, "--run-dir", run_dir / "run", *layout
    )
    step = ringside_cli.read_steps(run_dir / "run")[0]
    return [step[name] for name in ("distillation/kl", "distillation/divergence", "grad_norm") if name in step]


def main() -> int:
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        vllm_client.save_model(folder / "policy", 1)
        vllm_client.save_model(folder / "teacher", 2)
        (folder / "rollouts.jsonl").write_text(recorded())
        with vllm_client.vllm_server(folder / "teacher", folder / "server.log") as url:
            for keys in CASES:
                expected = step_of(folder, str(folder / "teacher"), keys, [])
                for layout in LAYOUTS:
                    found = step_of(folder, url, keys, layout)
                    off = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, expected, strict=True))
                    failures += not off < BOUND
                    print(f"{keys} {layout}: server {found}, trainer {expected}: {off:.1e}{'' if off < BOUND else '  FAIL'}")
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
