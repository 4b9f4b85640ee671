// Recurrent state of generation: the states and the last rows of the convolution of every sequence,
// so each new token costs one row.
//
// Shapes: B = sequences, h = value heads, K, V = dims of a state, T = taps, c = channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/nn/causal_conv.h"
#include "engine/nn/recurrent_backend.h"
#include "engine/nn/recurrent_runs.h"

namespace ringside::engine {

// The first call for each layer is the prefill, over the packed prompts. Later calls are for one
// row of each sequence. Not differentiable.
// Thread safety: none.
class RecurrentCache final : public RecurrentBackend {
 public:
  // prompt_lengths: tokens of each packed prompt, all positive.
  RecurrentCache(int64_t num_layers, std::vector<int64_t> prompt_lengths);

  // Keeps sequences rows_b (int64 on the cache's device, repeats allowed) in that order and drops
  // the others.
  void keep_rows(const at::Tensor& rows_b);

  // Throws: std::out_of_range on a layer that does not exist; c10::Error when a later call has not
  // one row of each sequence.
  at::Tensor mix(int64_t layer, const GatedDelta& net) override;

 private:
  struct LayerState {
    at::Tensor state_BhKV;  // accumulation dtype; undefined before the prefill
    at::Tensor before_BTc;  // [B, T - 1, c] rows before the next one
  };
  // Of the packed prompts, the same for every layer.
  struct PromptTables {
    std::shared_ptr<const ConvTables> conv;
    std::shared_ptr<const ChunkTables> chunks;
  };
  PromptTables make_tables(const sp::StateShape& shape, c10::Device device) const;
  at::Tensor prefill(LayerState& layer, const GatedDelta& net);
  static at::Tensor step(LayerState& layer, const GatedDelta& net);

  std::vector<int64_t> prompt_lengths_;
  std::vector<LayerState> layers_;
  PromptTables tables_;  // made by the first layer's prefill
};

}  // namespace ringside::engine
