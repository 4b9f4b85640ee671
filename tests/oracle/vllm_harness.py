"""An agent behind the gateway of a worker that drives a real vLLM on the CPU; the trainer recomputes every log-prob.

Guards: tokens of a session that are not the server's, turns that are encoded again before they go to a server, and new
weights that a session's next turn does not get.

Run by tools/test_vllm.sh; $VLLM_PYTHON names the Python that has vLLM.
"""

import json
import pathlib
import sys
import tempfile

import transformers

import harness_clients
import tiny_models
import vllm_client

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = str(ROOT / "build/ringside")
STEPS, PATIENCE_S = 6, 300


def save_model(folder: pathlib.Path):
    """harness_clients' tokenizer and template, with heads that vLLM's kernels for the CPU take."""
    harness_clients.write_model(folder)
    config = transformers.Qwen3Config(
        vocab_size=131, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=130, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    model = tiny_models.make_model(config, 3, 0.1)
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast",
                                                              "eos_token": harness_clients.END}))


def train(folder: pathlib.Path, name: str, served: list[str], worst_mean: float, published=()) -> bool:
    """A run of the agent with a worker that drives a server; `folder` has the model. served: keys of the worker; published: of
    the trainer."""
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": f"q{i}"}) + "\n" for i in range(16)))
    (folder / "notes").mkdir()
    agents = ROOT / "tests/oracle/harness_agents.py"
    words = [f"model.path={folder / 'model'}", f"data.train={folder / 'train.jsonl'}", "data.chat_template=model",
             "data.text_prompts=user", f"rollout.harness=python({agents}:with_openai)", "rollout.reward=worker",
             f"rollout.harness_options.python_command={sys.executable}", "rollout.prompts_per_step=4", "rollout.group_size=8",
             "rollout.max_completion_tokens=16", "rollout.max_prompt_tokens=256", f"train.steps={STEPS}",
             "optimizer.learning_rate=0.01", "train.threads=1", "--run-dir", str(folder / "run")]
    codes = vllm_client.exit_statuses(
        [[RINGSIDE, "train", *words, "log.rollouts=true", *published], [RINGSIDE, "rollout", *words, *served]], folder / "log",
        PATIENCE_S, AGENT_NOTES=str(folder / "notes"))
    if codes != [0, 0]:
        print(f"exit {codes}:", (folder / "log").read_text()[-4000:], sep="\n")
        return False
    steps, rollouts = harness_clients.lines_of(folder / "run/metrics.jsonl"), harness_clients.lines_of(folder / "run/rollouts.jsonl")
    notes = {(note["group"], note["sample"]): note["ids"]
             for note in (json.loads(path.read_text()) for path in (folder / "notes").iterdir())}
    same = all(r["prompt_ids"] + r["completion_ids"] == notes[r["group_id"], r["sample_index"]] for r in rollouts)
    worst = max(step["sampling/sampling_logp_difference/mean"] for step in steps)
    print(f"agent through the gateway and {name}: {len(rollouts)} sessions, ids equal to the server's: {same}, rewards by step "
          f"{[round(step['reward'], 3) for step in steps]}, log-probs at most {worst:.1e} from the trainer's (mean of a step)")
    return same and len(rollouts) == 32 * STEPS and worst < worst_mean


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        save_model(folder / "model")
        with vllm_client.vllm_server(folder / "model", folder / "server.log") as url:
            served = ["--server", "vllm", f"rollout.server_options.url={url}", "rollout.server_options.model=policy"]
            return 0 if train(folder, "vLLM", served, vllm_client.MEAN_BOUND) else 1


if __name__ == "__main__":
    sys.exit(main())
