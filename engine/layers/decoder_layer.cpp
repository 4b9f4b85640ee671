#include "engine/layers/decoder_layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace ringside::engine {

DecoderLayer::DecoderLayer(const ModelConfig& config, int64_t index, const TensorPlace& tensor)
    : prefix_(layer_prefix(config, index)),
      experts_module_(experts_module(config.experts)),
      num_experts_(config.experts.count),
      residual_multiplier_(config.multipliers.residual),
      table_(tensor),
      token_mixer_(make_token_mixer(config, index, table_)),
      channel_mixer_(make_channel_mixer(config, index, table_)) {
  const auto add = [&](std::optional<Norm>& norm, const char* name) {
    norm.emplace(table_, name, config.hidden_size, config.norm_options());
  };
  switch (config.norm_place) {
    case NormPlace::kBefore:
      add(token_norm_, "input_layernorm.weight");
      add(channel_norm_, "post_attention_layernorm.weight");
      break;
    case NormPlace::kAfter:
      add(token_branch_norm_, "post_attention_layernorm.weight");
      add(channel_branch_norm_, "post_feedforward_layernorm.weight");
      break;
    case NormPlace::kBoth:
      add(token_norm_, "input_layernorm.weight");
      add(token_branch_norm_, "post_attention_layernorm.weight");
      add(channel_norm_, "pre_feedforward_layernorm.weight");
      add(channel_branch_norm_, "post_feedforward_layernorm.weight");
      break;
  }
  sort_slots();
}

int64_t DecoderLayer::num_norms() const {
  return int64_t{token_norm_.has_value()} + int64_t{channel_norm_.has_value()} +
         int64_t{token_branch_norm_.has_value()} + int64_t{channel_branch_norm_.has_value()};
}

Support DecoderLayer::supports(Feature feature) const {
  const Support tokens = token_mixer_->supports(feature);
  return tokens ? channel_mixer_->supports(feature) : tokens;
}

void DecoderLayer::sort_slots() {
  std::vector<Slot> cut, whole;
  for (Slot slot = 0; slot < table_.weights().size(); ++slot) {
    const WeightSpec& weight = table_.weights()[slot];
    if (weight.place == WeightPlace::kLayer) {
      (weight.is_cut() ? cut : whole).push_back(slot);
      continue;
    }
    if (weight.place == WeightPlace::kStack || experts_slots_.empty()) {
      experts_slots_.emplace_back();
    }
    experts_slots_.back().push_back(slot);
  }
  for (std::vector<Slot>& unit : {std::ref(cut), std::ref(whole)}) {
    if (!unit.empty()) {
      slots_.push_back(std::move(unit));
    }
  }
}

std::vector<std::vector<ParamSpec>> DecoderLayer::unit_specs() const {
  std::vector<std::vector<ParamSpec>> units;
  for (const std::vector<Slot>& slots : slots_) {
    std::vector<ParamSpec>& unit = units.emplace_back();
    for (const Slot slot : slots) {
      for (const ParamSpec& spec : table_.weights()[slot].params) {
        unit.push_back({prefix_ + spec.name, spec.shape, spec.in_fp32, spec.cut});
      }
    }
  }
  return units;
}

std::vector<ParamSpec> DecoderLayer::specs() const {
  std::vector<ParamSpec> specs;
  for (std::vector<ParamSpec>& unit : unit_specs()) {
    std::ranges::move(unit, std::back_inserter(specs));
  }
  return specs;
}

std::vector<std::vector<ParamSpec>> DecoderLayer::experts_specs() const {
  std::vector<std::vector<ParamSpec>> units;
  for (const std::vector<Slot>& slots : experts_slots_) {
    std::vector<ParamSpec>& unit = units.emplace_back();
    const WeightSpec& first = table_.weights()[slots.front()];
    if (first.place == WeightPlace::kStack) {
      ParamSpec spec{prefix_ + first.params.front().name, first.params.front().shape};
      spec.shape.insert(spec.shape.begin(), num_experts_);
      unit.push_back(std::move(spec));
      continue;
    }
    for (int64_t x = 0; x < num_experts_; ++x) {
      const std::string of_expert =
          prefix_ + experts_module_ + ".experts." + std::to_string(x) + ".";
      for (const Slot slot : slots) {
        for (const ParamSpec& spec : table_.weights()[slot].params) {
          unit.push_back({of_expert + spec.name, spec.shape});
        }
      }
    }
  }
  return units;
}

std::vector<UnitShapes> DecoderLayer::unit_shapes(at::ScalarType compute_dtype) const {
  std::vector<UnitShapes> cuts;
  for (const std::vector<Slot>& slots : slots_) {
    cuts.push_back({compute_dtype, {}});
    for (const Slot slot : slots) {
      cuts.back().shapes.push_back(table_.weights()[slot].shape);
    }
  }
  return cuts;
}

std::vector<UnitShapes> DecoderLayer::experts_shapes(int64_t count,
                                                     at::ScalarType compute_dtype) const {
  std::vector<UnitShapes> cuts;
  for (const std::vector<Slot>& slots : experts_slots_) {
    cuts.push_back({compute_dtype, {}, count});
    for (const Slot slot : slots) {
      std::vector<int64_t> shape = table_.weights()[slot].shape;
      shape.insert(shape.begin(), count);
      cuts.back().shapes.push_back(std::move(shape));
    }
  }
  return cuts;
}

std::vector<Weight> DecoderLayer::weights_of(const std::vector<Weight>& matrices) const {
  std::vector<Slot> order;
  for (const std::vector<Slot>& slots : slots_) {
    order.insert(order.end(), slots.begin(), slots.end());
  }
  const std::size_t without_experts = order.size();
  for (const std::vector<Slot>& slots : experts_slots_) {
    order.insert(order.end(), slots.begin(), slots.end());
  }
  TORCH_CHECK(matrices.size() == order.size() || matrices.size() == without_experts, "a layer of ",
              order.size(), " matrices, got ", matrices.size());
  std::vector<Weight> weights(table_.weights().size());
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    weights[order[i]] = matrices[i];
  }
  return weights;
}

at::Tensor DecoderLayer::mix_channels(const at::Tensor& x_sE, const LayerPass& pass) const {
  LayerPass read = pass;
  // The gradient of a norm depends on what it normed.
  read.tiles.value_read = pass.tiles.value_read || channel_branch_norm_.has_value();
  return channel_mixer_->forward(x_sE, read);
}

at::Tensor DecoderLayer::forward(const at::Tensor& hidden_sE, const LayerPass& pass) const {
  const auto branch = [&](const at::Tensor& mixed, const std::optional<Norm>& norm) {
    const at::Tensor normed = norm ? (*norm)(mixed, pass) : mixed;
    return residual_multiplier_ == 1.0 ? normed : normed * residual_multiplier_;
  };
  if (!token_norm_) {
    const at::Tensor attended =
        hidden_sE + branch(token_mixer_->forward(hidden_sE, pass), token_branch_norm_);
    return attended + branch(mix_channels(attended, pass), channel_branch_norm_);
  }
  const ResidualNorm in = token_norm_->of_residual(hidden_sE, pass);
  const at::Tensor mixed = token_mixer_->forward(in.normed, pass);
  const ResidualNorm attended =
      channel_norm_->of_sum(in.residual, branch(mixed, token_branch_norm_), pass);
  return attended.residual + branch(mix_channels(attended.normed, pass), channel_branch_norm_);
}

std::vector<DecoderLayer> make_layers(const ModelConfig& config, const TensorPlace& tensor) {
  std::vector<DecoderLayer> layers;
  layers.reserve(config.num_hidden_layers);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers.emplace_back(config, i, tensor);
  }
  return layers;
}

Support supports(const ModelConfig& config, Feature feature, const TensorPlace& tensor) {
  for (const DecoderLayer& layer : make_layers(config, tensor)) {
    if (Support support = layer.supports(feature); !support) {
      return support;
    }
  }
  return Support::yes();
}

bool any_layer_supports(const ModelConfig& config, Feature feature) {
  return std::ranges::any_of(make_layers(config), [&](const DecoderLayer& layer) {
    return layer.token_mixer().supports(feature) || layer.channel_mixer().supports(feature);
  });
}

std::optional<sp::StateShape> passed_state(const ModelConfig& config, const TensorPlace& tensor) {
  for (const DecoderLayer& layer : make_layers(config, tensor)) {
    if (const TokenFlow flow = layer.token_mixer().flow(); flow.state) {
      return flow.state->key_heads > 0 ? flow.state : std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace ringside::engine
