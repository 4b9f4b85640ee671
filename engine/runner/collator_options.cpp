#include "engine/runner/collator_options.h"

#include <algorithm>

#include "engine/layers/decoder_layer.h"

namespace ringside::engine {

sp::HeadShape head_shape(const ModelConfig& config) {
  return {config.num_attention_heads, config.num_key_value_heads, config.head_dim};
}

int64_t most_ulysses_ranks(const ModelConfig& config) {
  int64_t most = config.num_attention_heads;
  for (const DecoderLayer& layer : make_layers(config)) {
    most = std::min(most, layer.token_mixer().flow().heads);
  }
  return most;
}

sp::CollatorOptions collator_options(const ModelConfig& config, int64_t tokens_per_micro_batch,
                                     const sp::SequenceOptions& sequence) {
  return {
      head_shape(config),       tokens_per_micro_batch, sequence, longest_exact_document(config),
      distinct_windows(config), passed_state(config)};
}

}  // namespace ringside::engine
