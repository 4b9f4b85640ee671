"""What `ringside check` refuses of a model and its files, each with a sentence that names the place.

Guards: weights or a configuration that pass `check` and then end a run, or train another model.

Usage: preflight_model_test.py RINGSIDE. Standard library only.
"""

import os
import shutil
import unittest

from preflight_case import HEADS, POSITIONS, PROMPTS, PreflightCase, quickstart_task
from tiny_weights import shapes_of, write_weights


class PreflightModel(PreflightCase):
    # --- the model ---

    def test_routes_of_a_model_without_experts(self):
        self.refused("algorithm.router_replay=rollout", expect=("algorithm.router_replay: is rollout", "has no experts"))

    def test_ranks_for_experts_that_the_model_does_not_have(self):
        self.refused("parallel.data_parallel_shard_size=2", "parallel.expert_parallel_size=2",
                     expect=("parallel.expert_parallel_size: is 2", "has no experts", "expected 1"))

    def test_balance_of_a_model_without_experts(self):
        self.refused("model.router_aux_loss_coef=0.01", "model.router_bias_update_rate=0.01",
                     expect=("model.router_aux_loss_coef: is 0.01", "has no experts; expected 0",
                             "model.router_bias_update_rate: is 0.01", "e_score_correction_bias"))

    def test_a_run_without_its_teacher(self):
        self.refused("algorithm.preset=opd", expect=("algorithm.preset: is opd", "expected algorithm.distillation.teacher"))
        self.refused("rollout.reward=none", expect=("rollout.reward: is none", "nothing is learned"))

    def test_a_teacher_of_another_vocabulary(self):
        teacher = self.folder / "teacher"
        shutil.copytree(self.model, teacher)
        opd = ("algorithm.preset=opd", f"algorithm.distillation.teacher={teacher}")
        self.lines("train.jsonl", [{"prompt": prompt["prompt"]} for prompt in PROMPTS])  # answers are not needed
        self.assertIn(", teacher ", self.accepted(*opd))
        top = ("algorithm.distillation.over=top_k", "algorithm.distillation.top_k=1000")
        self.refused(*opd, *top, expect=("distillation.top_k: is 1000", "48 words"))
        tokenizer = quickstart_task.tokenizer_json()
        words = tokenizer["model"]["vocab"]
        words["1"], words["2"] = words["2"], words["1"]
        self.write(teacher / "tokenizer.json", tokenizer)
        self.refused(*opd, expect=("whose token", "expected a teacher with the same vocabulary"))
        fewer = {**self.config, "vocab_size": 40}
        self.write(teacher / "config.json", fewer)
        write_weights(teacher / "model.safetensors", shapes_of(fewer))
        self.refused(*opd, expect=("vocab_size is 40, the policy's is 48",))

    def test_a_model_that_is_not_a_directory_here(self):
        for path, parts in {"": ["model.path is not set"],
                            "nothere": ["model.path", "nothere", "does not exist"],
                            "Qwen/Qwen3-0.6B": ["model.path", "hf download Qwen/Qwen3-0.6B"],
                            "~/models/x": ["model.path", f"{os.environ.get('HOME', '')}/models/x", "does not exist"],
                            "train.jsonl": ["model.path", "expected a directory"]}.items():
            with self.subTest(path=path):
                self.refused(f"model.path={path}", expect=tuple(parts))

    def test_files_that_belong_beside_the_weights(self):
        adapter = self.folder / "adapter"
        adapter.mkdir()
        self.write(adapter / "adapter_config.json", {})
        self.refused(f"model.path={adapter}", expect=("adapter", "its base model", "lora.path"))
        for name, text, parts in (("config.json", None, ("config.json", "does not exist")),
                                  ("config.json", '{"model_type": ', ("config.json:1:", "not valid JSON")),
                                  ("tokenizer.json", None, ("tokenizer.json", "does not exist")),
                                  ("tokenizer.json", '{"model": {', ("tokenizer.json:1:", "not valid JSON")),
                                  ("tokenizer.json", "{}", ("tokenizer.json", "model"))):
            with self.subTest(name=name, text=text):
                kept = (self.model / name).read_text()
                (self.model / name).unlink()
                if text is not None:
                    self.write(self.model / name, text)
                self.refused(expect=parts)
                self.write(self.model / name, kept)

    def test_fields_that_change_nothing_are_listed_and_those_that_do_are_refused_together(self):
        more = {"internal_version": "7b", "is_causal": True, "bias": False,
                "dual_chunk_attention_config": {"original_max_position_embeddings": 32}}
        self.write(self.model / "config.json", {**self.config, **more})
        text = self.accepted()
        self.assertIn("model.path: fields of config.json that change nothing here are passed over: "
                      "dual_chunk_attention_config, bias, internal_version, is_causal", text)
        self.assertIn("documents of more than 32 tokens are refused", text)
        # The longest prompt has 4 tokens.
        self.refused("rollout.max_completion_tokens=29", expect=("expected at most 28",))
        self.write(self.model / "config.json", {**self.config, "clip_qkv": 8.0, "logits_scaling": 8.0})
        self.write(self.model / "hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}})
        self.refused(expect=("'clip_qkv' is a field", "'logits_scaling' is a field", "quant_algo FP8"))

    def test_weights_are_judged_by_their_headers(self):
        weights = self.model / "model.safetensors"
        shapes = shapes_of(self.config)
        write_weights(weights, {**shapes, "model.norm.weight": [15]})
        self.refused(expect=("model.norm.weight", "[15]", "[16]"))
        write_weights(weights, {name: shape for name, shape in shapes.items() if "q_proj" not in name and "norm" not in name})
        self.refused(expect=("self_attn.q_proj.weight", "model.norm.weight", "none of the weight files"))
        write_weights(weights, {**shapes, "model.extra": [2]})
        self.refused(expect=("model.extra",))
        self.write(weights, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        self.refused(expect=("git-lfs", "git lfs pull"))
        weights.unlink()
        self.refused(expect=("model.safetensors",))
        (self.model / "pytorch_model.bin").write_bytes(b"")
        self.refused(expect=("pytorch_model.bin",))
        self.accepted("model.init=random")

    def test_weights_that_are_not_finite_name_the_tensor(self):
        write_weights(self.model / "model.safetensors", shapes_of(self.config), "model.norm.weight")
        code, text = self.ringside("train", self.recipe, *self.sft, "--run-dir", self.folder / "run")
        self.assertEqual(code, 1, text)
        self.assertIn("model.norm.weight", text)
        self.assertIn("finite", text)

    def test_what_the_configuration_asks_of_the_model(self):
        self.refused("rollout.max_completion_tokens=64",
                     expect=("rollout.max_completion_tokens", "max_position_embeddings", str(POSITIONS)))
        self.accepted("rollout.max_prompt_tokens=1000")  # the prompts that are there fit
        self.refused("parallel.ulysses_parallel_size=8", expect=("parallel.ulysses_parallel_size", "4 query heads"))
        self.refused("parallel.context_parallel_size=8", "sp.method=ulysses", expect=("4 query heads",))
        self.refused("algorithm.kl_coef=0.1", "model.reference_path=/nope", expect=("model.reference_path", "/nope"))
        self.refused("algorithm.advantage.estimator=gae", "algorithm.critic.model_path=/nope",
                     expect=("algorithm.critic.model_path", "/nope"))
        self.write(self.model / "config.json", {**self.config, "vocab_size": 40})
        write_weights(self.model / "model.safetensors", shapes_of({**self.config, "vocab_size": 40}))
        self.refused(expect=("tokenizer.json", "vocab_size", "40"))

    def test_projections_that_the_model_does_not_have(self):
        shared = {key: value for key, value in self.config.items() if "window" not in key and key != "layer_types"}
        latent = {**shared, "model_type": "deepseek_v3", "num_key_value_heads": HEADS, "head_dim": 4,
                  "q_lora_rank": 6, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4,
                  "n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
                  "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0}
        self.write(self.model / "config.json", latent)
        random = ("model.init=random",)
        self.accepted(*random)
        self.accepted(*random, "lora.rank=2", "lora.target_modules=q_a_proj,kv_b_proj,o_proj")
        self.accepted(*random, "lora.rank=2", "lora.target_modules=o_proj,experts.gate_up_proj,experts.down_proj")
        self.refused(*random, "lora.rank=2",
                     expect=("lora.target_modules", "experts have none", "kv_a_proj_with_mqa", "experts.down_proj"))
        self.refused(*random, "lora.rank=2", "lora.target_modules=k_proj", expect=("lora.target_modules", "q_a_proj"))
        self.refused(*random, "sp.async_ulysses=true", "parallel.ulysses_parallel_size=2",
                     expect=("sp.async_ulysses", "latent attention", "deepseek_v3"))
        quantised = ("lora.rank=2", "lora.base=nf4", "lora.target_modules=q_a_proj")
        self.refused(*random, *quantised, expect=("lora.base: is nf4, but latent attention cannot be quantised",
                                                   "expected model"))
        self.write(self.model / "config.json", {**latent, "first_k_dense_replace": 1})
        self.refused(*random, *quantised, expect=("lora.base: is nf4, but", "deepseek_v3"))
        self.write(self.model / "config.json", self.config)
        self.accepted("lora.rank=2", "lora.base=nf4")

    def test_values_that_are_seldom_meant_are_noted(self):
        # Planned for another machine: this one has no memory for so many workers.
        text = self.accepted("--memory", "80GiB", "rollout.num_workers=1000", "optimizer.warmup_steps=50",
                             "optimizer.learning_rate=0", "rollout.prompts_per_step=300",
                             f"data.eval={self.folder}/train.jsonl", "eval.every=1")
        for note in ("rollout.num_workers x rollout.worker_threads is 1000 x 1",
                     "optimizer.warmup_steps is 50 of 1 optimizer steps", "optimizer.learning_rate is 0: the weights do not change",
                     "data.train has 4 prompts, fewer than rollout.prompts_per_step 300",
                     "data.eval names the files of data.train"):
            self.assertIn("warning: " + note, text)
        self.lines("train.jsonl", [PROMPTS[0]] * 3)
        self.assertIn("warning: data.train has 3 prompts of one text", self.accepted())
        self.lines("train.jsonl", PROMPTS)
        self.assertNotIn("warning", self.accepted())

    def test_ulysses_ranks_that_a_hybrid_model_has_no_heads_for(self):
        shared = {key: value for key, value in self.config.items() if "window" not in key}
        hybrid = {**shared, "model_type": "qwen3_5_text", "num_key_value_heads": 1, "layer_types": ["linear_attention"],
                  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
                  "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4}
        self.write(self.model / "config.json", hybrid)
        random = ("model.init=random",)
        text = self.accepted(*random, "parallel.ulysses_parallel_size=2")  # more than key/value heads
        self.assertIn("memory of a rank", text)
        self.refused(*random, "parallel.ulysses_parallel_size=4",
                     expect=("parallel.ulysses_parallel_size", "2 key heads in its delta nets", "linear_num_key_heads"))
        self.refused(*random, "parallel.context_parallel_size=4", "sp.method=ulysses", expect=("2 key heads",))
        text = self.accepted(*random, "parallel.context_parallel_size=4")
        self.refused(*random, "parallel.ulysses_parallel_size=2", "sp.async_ulysses=true",
                     expect=("sp.async_ulysses: is true, but models with gated delta nets", "qwen3_5_text", "expected false"))
        self.assertIn("ulysses 2 x ring 2", text)
        self.assertNotIn("ulysses 4", text)


if __name__ == "__main__":
    unittest.main()
