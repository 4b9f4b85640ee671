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

// States of some sequences after one layer; undefined where the layer passes none.
struct LayerState {
  at::Tensor state_BhKV;  // accumulation dtype
  at::Tensor before_BTc;  // [B, T - 1, c] rows before the next one
};

// What a prompt left: sequence `index` of `layers`, which prompts of one forward share.
struct PromptState {
  std::shared_ptr<const std::vector<LayerState>> layers;
  int64_t index = 0;
};

// Not differentiable. Thread safety: none.
class RecurrentCache final : public RecurrentBackend {
 public:
  // Without rows.
  explicit RecurrentCache(int64_t num_layers) : rows_(num_layers) {}

  // The next forward is over these packed prompts.
  void begin_prompts(std::vector<int64_t> lengths);
  // The next forward is over one token of each row.
  void begin_step() { prompts_ = nullptr; }

  // What prompt `index` of the last such forward left.
  PromptState prompt(int64_t index) const { return {prompts_, index}; }

  // Adds a row behind each of these prompts.
  void add_rows(const std::vector<PromptState>& prompts);
  // Keeps rows_b (int64 on the cache's device) in that order and drops the others.
  void keep_rows(const at::Tensor& rows_b);

  // Throws: std::out_of_range on a layer that does not exist; c10::Error when a step has not one
  // row of each sequence.
  at::Tensor mix(int64_t layer, const GatedDelta& net) override;

 private:
  // Of the packed prompts, the same for every layer.
  struct PromptTables {
    std::shared_ptr<const ConvTables> conv;
    std::shared_ptr<const ChunkTables> chunks;
  };
  PromptTables make_tables(const sp::StateShape& shape, c10::Device device) const;
  at::Tensor prefill(LayerState& layer, const GatedDelta& net);
  static at::Tensor step(LayerState& layer, const GatedDelta& net);

  std::vector<LayerState> rows_;
  std::shared_ptr<std::vector<LayerState>> prompts_;  // null: the forward is a step
  std::vector<int64_t> prompt_lengths_;
  PromptTables tables_;  // made by the first layer's prefill
};

}  // namespace ringside::engine
