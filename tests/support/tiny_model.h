// A decoder small enough to train in milliseconds, with grouped-query heads and query and key
// norms.
#pragma once

#include "engine/models/decoder.h"

namespace ringside::test {

inline engine::ModelConfig tiny_config(int64_t vocab_size = 19) {
  engine::ModelConfig config;
  config.vocab_size = vocab_size;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 256;
  config.qk_norm = true;
  return config;
}

inline engine::Decoder random_decoder(const engine::ModelConfig& config, at::ScalarType dtype,
                                      uint64_t seed, double std = 0.2) {
  engine::Decoder decoder(config, dtype);
  decoder.init_random(seed, std);
  return decoder;
}

}  // namespace ringside::test
