// Shape of a dry run's model: the recipe's architecture with small widths and few layers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/layers/model_config.h"

namespace ringside::tools {

// The ids of a made-up tokenizer, for a model whose own tokenizer is not there.
struct MadeUpIds {
  int64_t vocab_size = 0;
  int64_t eos = 0;
  int64_t vision_start = 0, vision_end = 0, image = 0, video = 0;
};

// The first 2 layers and the first layer of each further kind; heads of at most 16 components, 2
// key-value heads, an MLP of 96, 8 experts, and a hidden size of 64, or that of all heads where the
// model's is; of a vision tower two blocks. Kept are the architecture, the ratio of query to
// key-value heads, tied embeddings, biases, norms, RoPE and the positions, and the vocabulary
// unless `ids` replaces it. Every eighth id ends a completion, so that lengths of random
// completions differ.
engine::ModelConfig small_model(const engine::ModelConfig& model,
                                const std::optional<MadeUpIds>& ids);

// A Qwen3 of a usual shape, for a recipe whose model is not there.
engine::ModelConfig made_up_model();

// "28 -> 2 layers, hidden size 1024 -> 64, ...".
std::string describe_shrinking(const engine::ModelConfig& model, const engine::ModelConfig& small);

}  // namespace ringside::tools
