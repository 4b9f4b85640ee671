// Fields of a configuration that make a two-layer model a hybrid: the first layer a gated delta
// net, the second gated attention.
#pragma once

#include <nlohmann/json.hpp>

namespace ringside::test {

// Qwen3-Next's, small, without those of its experts.
inline nlohmann::json hybrid_fields() {
  return {{"model_type", "qwen3_next"},
          {"head_dim", 8},
          {"layer_types", {"linear_attention", "full_attention"}},
          {"linear_num_key_heads", 2},
          {"linear_num_value_heads", 4},
          {"linear_key_head_dim", 6},
          {"linear_value_head_dim", 5},
          {"linear_conv_kernel_dim", 4},
          {"shared_expert_intermediate_size", 16}};
}

}  // namespace ringside::test
