"""Agents written against the official openai and anthropic packages train through the gateway.

Guards: an answer that these packages cannot read, a recorded rollout that is not what the agent's requests sampled, turns
that are encoded again, and an agent whose reward teaches nothing.

Usage: harness_clients.py, with RINGSIDE naming the program.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
RINGSIDE = os.environ.get("RINGSIDE", "")
START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = """{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}{%- for call in m.tool_calls or [] -%}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


def write_model(folder: pathlib.Path):
    """A tiny Qwen3 whose tokens are the characters of ASCII, "ab", and the markers of ChatML."""
    vocabulary = {chr(code): code for code in range(128)} | {"ab": 128}
    added = [{"id": id, "content": text, "special": True, "normalized": False, "single_word": False, "lstrip": False,
              "rstrip": False} for id, text in ((129, START), (130, END))]
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "unk_token": None, "merges": ["a b"], "vocab": vocabulary}}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 131, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True, "max_position_embeddings": 512,
        "hidden_act": "silu", "attention_bias": False, "eos_token_id": 130}))


def lines_of(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class HarnessClients(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        write_model(self.folder / "model")
        (self.folder / "train.jsonl").write_text("".join(json.dumps({"prompt": f"q{i}"}) + "\n" for i in range(16)))
        (self.folder / "notes").mkdir()

    def run_agent(self, name: str, steps: int, *words: str) -> list[dict]:
        """Trains; returns the metrics."""
        command = [RINGSIDE, "run", "--run-dir", self.folder / "run", f"model.path={self.folder / 'model'}", "model.init=random",
                   f"data.train={self.folder / 'train.jsonl'}", "data.chat_template=model", "data.text_prompts=user",
                   f"rollout.harness=python({HERE / 'harness_agents.py'}:{name})", "rollout.reward=worker",
                   f"rollout.harness_options.python_command={sys.executable}", "rollout.prompts_per_step=4",
                   "rollout.group_size=8", "rollout.max_completion_tokens=16", "rollout.max_prompt_tokens=256",
                   f"train.steps={steps}", "optimizer.learning_rate=0.01", "log.rollouts=true", "train.threads=1",
                   "log.progress=lines", *words]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=240,
                              env=os.environ | {"AGENT_NOTES": str(self.folder / "notes")})
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        return lines_of(self.folder / "run/metrics.jsonl")

    def notes(self) -> dict:
        notes = [json.loads(path.read_text()) for path in (self.folder / "notes").iterdir()]
        return {(note["group"], note["sample"]): note for note in notes}

    def rollouts(self) -> list[dict]:
        files = sorted((self.folder / "run").rglob("rollouts*.jsonl"))
        return [line for file in files for line in lines_of(file)]

    def assert_learns(self, metrics: list[dict], key: str):
        rewards = [line[key] for line in metrics if key in line]
        print(f"{self.id()}: {key} by step {[round(reward, 3) for reward in rewards]}")
        self.assertGreater(sum(rewards[-3:]) / 3, 3 * sum(rewards[:3]) / 3 + 0.02)

    def test_an_agent_of_openai_trains_and_its_tokens_are_the_rollouts(self):
        metrics = self.run_agent("with_openai", 12)
        notes, rollouts = self.notes(), self.rollouts()
        self.assertGreaterEqual(len(rollouts), 12 * 32)
        for rollout in rollouts:
            ids = rollout["prompt_ids"] + rollout["completion_ids"]
            self.assertEqual(ids, notes[rollout["group_id"], rollout["sample_index"]]["ids"])
            self.assertEqual(len(rollout["turn_offsets"]), 3)
            self.assertNotIn("branches", rollout)
        self.assert_learns(metrics, "reward")
        self.assertLess(max(line["sampling/sampling_logp_difference/max"] for line in metrics), 1e-3)

    def test_streams_of_openai_bring_the_recorded_log_probs(self):
        self.run_agent("with_openai_streams", 2)
        notes = self.notes()
        for rollout in self.rollouts():
            for ours, theirs in zip(rollout["logprobs"], notes[rollout["group_id"], rollout["sample_index"]]["logprobs"],
                                    strict=True):
                self.assertAlmostEqual(ours, theirs, places=5)
            self.assertEqual({name for name, _ in rollout["rewards"]} if isinstance(rollout["rewards"], list)
                             else set(rollout["rewards"]), {"share", "length"})
        self.assertGreater(max(note["pieces"] for note in notes.values()), 1)  # of six tokens

    def test_an_agent_of_anthropic_trains(self):
        metrics = self.run_agent("with_anthropic", 12)
        self.assertTrue(all(note["turns"] == 3 for note in self.notes().values()))
        self.assertGreater(max(note["pieces"] for note in self.notes().values()), 1)
        self.assertTrue(all(len(rollout["turn_offsets"]) == 3 for rollout in self.rollouts()))
        self.assert_learns(metrics, "reward")


if __name__ == "__main__":
    unittest.main()
