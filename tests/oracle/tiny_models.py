"""Small randomly drawn Hugging Face models to compare on, and rollouts recorded from them.

Weights are drawn wide (std 0.2, norms around 1, biases too) so that a transposed, dropped or
doubled tensor moves the log-probs far beyond any tolerance.
"""

import json
import pathlib
import random

import tokenizers
import torch
import transformers

transformers.utils.logging.disable_progress_bar()

VOCAB = 97  # odd, so that a vocabulary chunk of any even size leaves a remainder
EOS, PAD = 1, 0


def _common(heads: int, kv_heads: int, head_dim: int, tied: bool, layers: int) -> dict:
    return dict(
        vocab_size=VOCAB,
        hidden_size=heads * head_dim,
        intermediate_size=3 * 32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )


def make_config(
    family: str, heads: int, kv_heads: int, tied: bool, layers: int = 2, head_dim: int = 16
):
    """A configuration of "qwen3", "qwen3_moe", "deepseek_v3", "qwen2" (biases on q, k, v), "mistral" or "llama" (llama3 RoPE
    scaling)."""
    common = _common(heads, kv_heads, head_dim, tied, layers)
    if (
        family == "qwen3"
    ):  # its head_dim is a free parameter: make it differ from hidden_size / heads
        common["hidden_size"] = 48
        return transformers.Qwen3Config(
            head_dim=head_dim, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **common
        )
    if family == "qwen3_moe":  # the second of three layers has an MLP
        return transformers.Qwen3MoeConfig(
            head_dim=head_dim, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=tied,
            mlp_only_layers=[1], rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            **common | {"num_hidden_layers": layers + 1},
        )
    if family == "deepseek_v3":  # the first of three layers has an MLP; YaRN; tied: queries without a latent
        yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
                "mscale": 1.0, "mscale_all_dim": 0.7}
        return transformers.DeepseekV3Config(
            rms_norm_eps=1e-4, q_lora_rank=None if tied else 20, kv_lora_rank=12, qk_nope_head_dim=head_dim - 4, qk_rope_head_dim=4,
            v_head_dim=head_dim - 6, attention_bias=not tied, n_group=3, topk_group=2, n_routed_experts=9,
            num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1,
            norm_topk_prob=not tied, rope_interleave=not tied, rope_parameters=yarn,
            **common | {"num_hidden_layers": layers + 1, "num_key_value_heads": heads},
        )
    if family == "mistral":
        return transformers.MistralConfig(
            head_dim=head_dim, sliding_window=None, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            **common | {"hidden_size": 48},
        )
    if family == "qwen2":
        return transformers.Qwen2Config(
            rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **common
        )
    if family == "llama":
        rope = {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        return transformers.LlamaConfig(head_dim=head_dim, rope_parameters=rope, **common)
    raise ValueError(f"family is '{family}', expected qwen3, qwen3_moe, deepseek_v3, qwen2, mistral or llama")


ROPE_TYPES = ("linear", "dynamic", "yarn", "yarn, all fields", "longrope", "longrope, factor")


def make_rope_config(rope: str, original: int = 64, max_positions: int = 4096, head_dim: int = 16):
    """A Llama configuration with 4 / 2 heads whose RoPE is one of ROPE_TYPES, scaled from `original` positions."""
    rope_type = rope.split(",")[0]
    parameters = {"rope_type": rope_type, "rope_theta": 1e5}
    if rope_type in ("linear", "dynamic", "yarn"):
        parameters["factor"] = 4.0
    if rope_type in ("yarn", "longrope"):
        parameters["original_max_position_embeddings"] = original
    if rope == "yarn, all fields":
        parameters |= {"attention_factor": 1.3, "beta_fast": 20.0, "beta_slow": 2.0, "mscale": 0.7,
                       "mscale_all_dim": 0.5, "truncate": False}
    if rope_type == "longrope":
        pairs = range(head_dim // 2)
        parameters |= {"short_factor": [1 + 0.05 * i for i in pairs], "long_factor": [1 + 0.75 * i for i in pairs]}
    if rope == "longrope, factor":
        parameters |= {"factor": 16.0}
    common = _common(4, 2, head_dim, False, 2) | {"max_position_embeddings": max_positions}
    return transformers.LlamaConfig(head_dim=head_dim, rope_parameters=parameters, **common)


# What each layer type adds is in one of these: windows in all layers or in some, sinks, norms, gates, scales.
FAMILIES = ("mistral, window", "qwen2, windows", "qwen3, windows", "qwen3_moe, window", "gemma3", "gpt_oss", "qwen3_next",
            "qwen3_5", "deepseek_v3", "deepseek_v3, queries without latent", "seed_oss", "smollm3", "exaone4", "glm4_moe",
            "glm4_moe, head norms", "arcee", "olmo3", "granite", "phi3")
# Made of what is in those: compared when they are named, not with all families.
MORE_FAMILIES = ("minimax_m2", "qwen3_5_moe")
# Compared in float64 alone; published_configs.py has them in float32.
IN_DOUBLES = ("olmo3", "granite", "phi3")


def make_family(family: str):
    """A configuration of one of FAMILIES with three layers and, where it has them, windows shorter than 10 tokens."""
    common = _common(4, 2, 16, False, 3)
    plain_rope = {"rope_type": "default", "rope_theta": 1e4}
    if family == "mistral, window":
        return transformers.MistralConfig(head_dim=16, sliding_window=8, rope_parameters=plain_rope, **common)
    if family == "qwen2, windows":
        return transformers.Qwen2Config(use_sliding_window=True, sliding_window=5, rope_parameters=plain_rope,
                                        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                        **common)
    if family == "qwen3, windows":
        return transformers.Qwen3Config(head_dim=16, use_sliding_window=True, sliding_window=6, max_window_layers=1,
                                        rope_parameters=plain_rope, **common)
    if family == "qwen3_moe, window":
        return transformers.Qwen3MoeConfig(head_dim=16, use_sliding_window=True, sliding_window=7, num_experts=4,
                                           num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
                                           rope_parameters=plain_rope, **common)
    if family == "gemma3":
        rope = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": plain_rope}
        return transformers.Gemma3TextConfig(head_dim=16, sliding_window=8, sliding_window_pattern=2,
                                             query_pre_attn_scalar=24, rope_parameters=rope,
                                             **common | {"tie_word_embeddings": True})
    if family == "gpt_oss":
        rope = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": False, "original_max_position_embeddings": 64}
        return transformers.GptOssConfig(head_dim=16, num_local_experts=5, num_experts_per_tok=2, sliding_window=4,
                                         rope_parameters=rope, **common | {"intermediate_size": 24})
    if family in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):
        hybrid = _common(4, 2, 16, False, 4) | dict(
            head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
            linear_value_head_dim=12, linear_conv_kernel_dim=4,
            rope_parameters=plain_rope | {"partial_rotary_factor": 0.5})
        if family == "qwen3_5":
            return transformers.Qwen3_5TextConfig(**hybrid)
        experts = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24,
                       shared_expert_intermediate_size=20)
        if family == "qwen3_5_moe":
            del hybrid["intermediate_size"]
            return transformers.Qwen3_5MoeTextConfig(**experts, **hybrid)
        return transformers.Qwen3NextConfig(norm_topk_prob=True, **experts, **hybrid)
    if family == "seed_oss":
        return transformers.SeedOssConfig(head_dim=16, attention_bias=True, attention_out_bias=True, mlp_bias=True,
                                          rope_parameters=plain_rope, **common)
    if family == "smollm3":  # without attention_bias: a key's bias has no gradient where there is no RoPE
        return transformers.SmolLM3Config(no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=8,
                                          mlp_bias=True, rope_parameters=plain_rope, **common)
    if family == "exaone4":
        return transformers.Exaone4Config(head_dim=16, sliding_window=8, sliding_window_pattern=2,
                                          rope_parameters=plain_rope, **common)
    if family.startswith("glm4_moe"):  # the first layer has an MLP
        return transformers.Glm4MoeConfig(head_dim=16, attention_bias=True, use_qk_norm=family != "glm4_moe",
                                          n_routed_experts=9, n_group=3, topk_group=2, num_experts_per_tok=3,
                                          moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1,
                                          norm_topk_prob=family != "glm4_moe", routed_scaling_factor=1.5,
                                          rope_parameters=plain_rope | {"partial_rotary_factor": 0.5}, **common)
    if family == "arcee":
        return transformers.ArceeConfig(head_dim=16, attention_bias=True, mlp_bias=True, rope_parameters=plain_rope,
                                        **common)
    if family == "olmo3":  # RoPE without scaling: transformers 5.9 would scale it in windowed layers, too
        return transformers.Olmo3Config(sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 2,
                                        rope_parameters=plain_rope, **common | {"num_hidden_layers": 4})
    if family == "granite":
        return transformers.GraniteConfig(embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.4,
                                          logits_scaling=2.5, rope_parameters=plain_rope, **common)
    if family == "phi3":  # the factor on cos and sin is on the turned components alone
        longrope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, "factor": 16.0,
                    "short_factor": [1 + 0.3 * i for i in range(6)], "long_factor": [2.0 + i for i in range(6)]}
        return transformers.Phi3Config(sliding_window=8, rope_parameters=longrope,
                                       original_max_position_embeddings=4096, **common)
    if family == "minimax_m2":
        return transformers.MiniMaxM2Config(head_dim=16, num_local_experts=5, num_experts_per_tok=2,
                                            rope_parameters=plain_rope | {"partial_rotary_factor": 0.5},
                                            **common | {"intermediate_size": 24})
    if family.startswith("deepseek_v3"):
        return make_config("deepseek_v3", 4, 4, tied=family != "deepseek_v3")
    raise ValueError(f"family is '{family}', expected one of {FAMILIES + MORE_FAMILIES}")


def attention_of(config) -> str:
    """The attention implementation that the class has: sinks are in the eager one alone."""
    return "eager" if config.model_type == "gpt_oss" else "sdpa"


def on_disk(tensors: dict[str, torch.Tensor], config) -> dict[str, torch.Tensor]:
    """Tensors by transformers' names in memory -> by its names on disk: experts one by one."""
    if config.model_type == "gpt_oss":  # fused on disk too
        return tensors
    minimax = config.model_type == "minimax_m2"  # as Mixtral
    module = ".block_sparse_moe" if minimax else ".mlp"
    names = ({"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"} if minimax else
             {name: name for name in ("gate_proj", "up_proj", "down_proj")})
    result = {}
    for name, value in tensors.items():
        prefix, found, matrix = name.partition(".mlp.experts.")
        if minimax and not found:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if not found:
            result[name] = value
            continue
        for expert, of_expert in enumerate(value):
            parts = {"gate_proj": of_expert[: len(of_expert) // 2], "up_proj": of_expert[len(of_expert) // 2 :]}
            for part, tensor in (parts if matrix == "gate_up_proj" else {"down_proj": of_expert}).items():
                result[f"{prefix}{module}.experts.{expert}.{names[part]}.weight"] = tensor
    return result


def make_model(config, seed: int, std: float = 0.2):
    """A float32 model of `config`, all of it drawn: norms' factors 1 + std N(0, 1), sinks N(0, 1), the rest std
    N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    auto = transformers.AutoModelForImageTextToText if hasattr(config, "text_config") else transformers.AutoModelForCausalLM
    model = auto.from_config(
        config, dtype=torch.float32, attn_implementation=attention_of(config), experts_implementation="eager"
    )
    gemma = config.model_type.startswith("gemma3")  # stores a norm's factor less 1
    hybrid = config.model_type.startswith(("qwen3_next", "qwen3_5"))  # the same but for linear_attn.norm
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * (1.0 if name.endswith("sinks") else std)
            if gemma and "embed_tokens" in name:
                noise *= 0.2  # scaled by sqrt(hidden_size) it would outweigh the layers
            stored_whole = "norm" in name and not gemma and (not hybrid or "linear_attn" in name)
            parameter.copy_(noise + 1 if stored_whole else noise)
            if name.endswith("A_log"):  # slow decay: what should not reach a token would be seen
                parameter.sub_(3.0)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # wide enough to change the choice of experts
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    return model.eval()


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A byte-pair tokenizer without merges over VOCAB characters; id 0 is padding, id 1 the end."""
    vocab = {"<pad>": PAD, "<eos>": EOS}
    vocab.update({chr(0x21 + i - 2): i for i in range(2, VOCAB - 1)} | {" ": VOCAB - 1})
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    core.add_special_tokens(["<pad>", "<eos>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<pad>"
    )


def save(model, folder: pathlib.Path) -> pathlib.Path:
    """Writes config, weights and tokenizer as a Hugging Face directory and returns it."""
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def _sample(
    model, prompt: list[int], length: int, generator: torch.Generator
) -> tuple[list[int], list[float]]:
    ids, logprobs = list(prompt), []
    for i in range(length):
        scores = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        scores_without_specials = scores.clone()
        scores_without_specials[[PAD, EOS]] = -torch.inf
        # The recorded length decides where a completion stops, so that lengths are ragged whatever
        # the model says.
        stops = i == length - 1 and length % 3 != 0
        token = (
            EOS
            if stops
            else int(torch.multinomial(scores_without_specials.exp(), 1, generator=generator))
        )
        ids.append(token)
        logprobs.append(float(scores[token]))
    return ids[len(prompt) :], logprobs


def record_rollouts(
    model, path: pathlib.Path, groups: int, group_size: int, seed: int, max_completion: int = 24
):
    """Writes groups x group_size rollouts of `model` to `path`, a JSON object a line; returns them.

    Lengths are ragged; the rewards of the second group are equal (its advantages are zero), the
    others vary.
    """
    chooser, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rollouts = []
    for group in range(groups):
        prompt = [chooser.randrange(2, VOCAB) for _ in range(chooser.randint(2, 13))]
        for _ in range(group_size):
            completion, logprobs = _sample(
                model, prompt, chooser.randint(1, max_completion), generator
            )
            rollouts.append(
                dict(
                    group_id=group,
                    prompt_ids=prompt,
                    completion_ids=completion,
                    logprobs=logprobs,
                    reward=1.0 if group == 1 else chooser.choice([0.0, 0.25, 0.5, 1.0]),
                    finish_reason="stop" if completion[-1] == EOS else "length",
                )
            )
    path.write_text("".join(json.dumps(rollout) + "\n" for rollout in rollouts))
    return rollouts
