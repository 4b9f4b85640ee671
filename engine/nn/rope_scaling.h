// Scaling of rotary frequencies for long contexts, as config.json states it. Torch-free.
#pragma once

#include <cstdint>

namespace ringside::engine {

// rope_scaling of type "llama3" (transformers modeling_rope_utils, _compute_llama3_parameters).
struct Llama3RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

}  // namespace ringside::engine
