#include "engine/models/value_model.h"

#include <ATen/ATen.h>

#include <utility>

#include "engine/nn/linear.h"

namespace ringside::engine {
namespace {

ModelConfig without_lm_head(ModelConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

}  // namespace

ValueModel::ValueModel(ModelConfig config, const ComputeContext& context)
    : trunk_(without_lm_head(std::move(config)), context) {
  head_ = std::make_unique<ParamUnit>(
      "value_head",
      std::vector<ParamSpec>{{"score.weight", {1, trunk_.config().hidden_size}},
                             {"score.bias", {1}}},
      context);
}

at::Tensor ValueModel::values(const at::Tensor& hidden_nE) const {
  TORCH_CHECK(hidden_nE.dim() == 2 && hidden_nE.size(1) == trunk_.config().hidden_size,
              "value model: hidden states must be [n, ", trunk_.config().hidden_size, "], got ",
              hidden_nE.sizes());
  const at::ScalarType master = head_->flat().scalar_type();
  const auto parameters = head_->gathered().materialize(master);  // weight, bias
  return apply_linear(hidden_nE.to(master), parameters[0], parameters[1]).squeeze(1);
}

std::vector<ParamUnit*> ValueModel::units() {
  auto all = trunk_.units();
  all.push_back(head_.get());
  return all;
}

std::vector<const ParamUnit*> ValueModel::units() const {
  auto all = trunk_.units();
  all.push_back(head_.get());
  return all;
}

}  // namespace ringside::engine
