// Decoder layer: a token mixer and a channel mixer, each added to the residual stream, with norms
// before them, behind them or both.
//
// Shapes: s = tokens, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/layers/layer_pass.h"
#include "engine/layers/mixer.h"
#include "engine/layers/model_config.h"
#include "engine/layers/norm.h"
#include "engine/layers/param_table.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// Holds no tensor: its weights come with each pass.
// Thread safety: immutable.
class DecoderLayer {
 public:
  // The layer that config.block(index) describes.
  // tensor: this rank, which computes with its part of the layer's matrices.
  // Throws: std::out_of_range as ModelConfig::block().
  DecoderLayer(const ModelConfig& config, int64_t index, const TensorPlace& tensor = {});

  const ParamTable& table() const { return table_; }
  const TokenMixer& token_mixer() const { return *token_mixer_; }
  const ChannelMixer& channel_mixer() const { return *channel_mixer_; }

  // Whether both mixers do; otherwise the first reason.
  Support supports(Feature feature) const;

  // Norms before and behind its mixers.
  int64_t num_norms() const;

  // Parameters of the layer but its experts', with their Hugging Face names, for each unit that
  // holds some: one unit of all; with tensor parallelism one of those that ranks divide, then one
  // of those that each rank uses whole.
  std::vector<std::vector<ParamSpec>> unit_specs() const;
  // All of them.
  std::vector<ParamSpec> specs() const;
  // The weights of each of these units.
  const std::vector<std::vector<Slot>>& unit_slots() const { return slots_; }
  // Parameters of the experts, for each unit that holds some: one unit with one expert after
  // another, or one for each stack of all experts. Empty for a layer without experts.
  std::vector<std::vector<ParamSpec>> experts_specs() const;
  // The weights of each of these units.
  const std::vector<std::vector<Slot>>& experts_slots() const { return experts_slots_; }

  // The matrices that these units are cut into on this rank; those of its experts' units, or of
  // parts of them with `count` experts.
  std::vector<UnitShapes> unit_shapes(at::ScalarType compute_dtype) const;
  std::vector<UnitShapes> experts_shapes(int64_t count, at::ScalarType compute_dtype) const;

  // The layer's weights for a pass from such matrices: those of each of unit_shapes(), then those
  // of each of experts_shapes() in order. The experts' may be left out.
  // Throws: c10::Error on another number of matrices.
  std::vector<Weight> weights_of(const std::vector<Weight>& matrices) const;

  // The hidden states behind the layer. Differentiable.
  // Shapes: hidden_sE -> hidden_sE; s may be 0.
  // Collective over: the attention backend's group, the ranks of the experts.
  // Throws: c10::Error on shapes or dtypes that do not fit, as its mixers.
  at::Tensor forward(const at::Tensor& hidden_sE, const LayerPass& pass) const;

 private:
  void sort_slots();
  // What the channel mixer makes of its input.
  at::Tensor mix_channels(const at::Tensor& x_sE, const LayerPass& pass) const;

  std::string prefix_;
  std::string experts_module_;
  int64_t num_experts_;
  double residual_multiplier_;
  ParamTable table_;
  std::vector<std::vector<Slot>> slots_;          // of each of the layer's units, in order
  std::vector<std::vector<Slot>> experts_slots_;  // of each of its experts' units
  std::unique_ptr<TokenMixer> token_mixer_;
  std::unique_ptr<ChannelMixer> channel_mixer_;
  // Before the mixers, and of what they add to the residual stream.
  std::optional<Norm> token_norm_, channel_norm_;
  std::optional<Norm> token_branch_norm_, channel_branch_norm_;
};

// Whether all layers of a model do, on this tensor rank; otherwise the first reason.
Support supports(const ModelConfig& config, Feature feature, const TensorPlace& tensor = {});
// Whether one of them does.
bool any_layer_supports(const ModelConfig& config, Feature feature);

// The state that a model's layers pass along the documents, of this tensor rank's heads; nullopt:
// no layer passes one, or this rank has none of its heads.
std::optional<sp::StateShape> passed_state(const ModelConfig& config,
                                           const TensorPlace& tensor = {});

// The layers of a model, in order.
std::vector<DecoderLayer> make_layers(const ModelConfig& config, const TensorPlace& tensor = {});

}  // namespace ringside::engine
