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

sp::ImageWork image_work(const ModelConfig& config) {
  if (!config.vision) {
    return {};
  }
  const VisionConfig& c = *config.vision;
  const int64_t matrices = c.family == VisionFamily::kQwen2_5Vl ? 3 : 2;  // of an MLP
  const int64_t joined = c.patches_of_token() * c.width;
  const int64_t merged = (1 + std::ssize(c.deepstack)) * joined * (joined + config.hidden_size);
  const int64_t of_block = 4 * c.width * c.width + matrices * c.width * c.mlp;
  sp::ImageWork work;
  work.patch = 2 * (c.row_size() * c.width + c.depth * of_block + merged / c.patches_of_token());
  for (int64_t block = 0; block < c.depth; ++block) {
    (c.is_windowed(block) ? work.window_pair : work.frame_pair) += 4 * c.width;
  }
  work.window = c.window > 0 ? c.window_tokens() * c.merge : 0;
  return work;
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
          work_rates(config),
          image_work(config)};
}

}  // namespace ringside::engine
