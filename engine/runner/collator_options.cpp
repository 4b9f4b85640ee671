#include "engine/runner/collator_options.h"

#include <algorithm>

#include "engine/layers/layer_work.h"

namespace ringside::engine {

sp::HeadShape head_shape(const ModelConfig& config, const TensorPlace& tensor) {
  const sp::HeadShape whole{config.num_attention_heads, config.num_key_value_heads,
                            config.head_dim};
  return tensor.ranks == 1 ? whole : sp::part_of_heads(whole, tensor.ranks, tensor.rank);
}

int64_t most_ulysses_ranks(const ModelConfig& config, int64_t tensor_ranks) {
  int64_t most = config.num_attention_heads;
  for (int64_t rank = 0; rank < tensor_ranks; ++rank) {
    for (const DecoderLayer& layer : make_layers(config, {rank, tensor_ranks})) {
      const int64_t heads = layer.token_mixer().flow().heads;
      most = heads > 0 || tensor_ranks == 1 ? std::min(most, heads) : most;
    }
  }
  return most;
}

sp::WorkRates work_rates(const ModelConfig& config) {
  sp::WorkRates rates{0.0, {}};
  for (const DecoderLayer& layer : make_layers(config)) {
    const LayerWork work = work_of(layer, config);
    rates.token += work.token;
    if (work.window) {
      rates.pair[*work.window] += work.pair;
    }
  }
  return rates;
}

sp::CollatorOptions collator_options(const ModelConfig& config, int64_t tokens_per_micro_batch,
                                     const sp::SequenceOptions& sequence,
                                     const TensorPlace& tensor) {
  return {head_shape(config, tensor),
          tokens_per_micro_batch,
          sequence,
          longest_exact_document(config),
          distinct_windows(config),
          passed_state(config, tensor),
          work_rates(config)};
}

}  // namespace ringside::engine
