#include "engine/runner/collator_options.h"

#include <algorithm>

namespace ringside::engine {

sp::HeadShape head_shape(const ModelConfig& config) {
  return {config.num_attention_heads, config.num_key_value_heads, config.head_dim};
}

int64_t most_ulysses_ranks(const ModelConfig& config) {
  return config.has_delta_net()
             ? std::min(config.num_attention_heads, config.delta_net.shape.key_heads)
             : config.num_attention_heads;
}

sp::CollatorOptions collator_options(const ModelConfig& config, int64_t tokens_per_micro_batch,
                                     const sp::SequenceOptions& sequence) {
  return {head_shape(config),
          tokens_per_micro_batch,
          sequence,
          longest_exact_document(config),
          distinct_windows(config),
          config.has_delta_net() ? std::make_optional(config.delta_net.shape) : std::nullopt};
}

}  // namespace ringside::engine
