#include "engine/models/value_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/models/pipeline.h"
#include "engine/nn/linear.h"

namespace ringside::engine {
namespace {

ModelConfig without_lm_head(ModelConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

}  // namespace

std::vector<ParamSpec> ValueModel::head_specs(const ModelConfig& config, bool bias) {
  std::vector<ParamSpec> specs{{"score.weight", {1, config.hidden_size}}};
  if (bias) {
    specs.push_back({"score.bias", {1}});
  }
  return specs;
}

ValueModel::ValueModel(ModelConfig config, const ComputeContext& context, bool head_bias)
    : head_bias_(head_bias) {
  const ModelConfig trunk = without_lm_head(std::move(config));
  for (Stage stage : own_stages(trunk, context.pipeline.get())) {
    stage.vocabulary = stage.embeds;
    stages_.push_back(std::make_unique<Decoder>(trunk, stage, context));
  }
  if (stages_.back()->stage().scores) {
    head_ = std::make_unique<ParamUnit>("value_head", head_specs(trunk, head_bias),
                                        undivided_context(context));
  }
}

std::vector<Decoder*> ValueModel::stages() {
  std::vector<Decoder*> all;
  for (const auto& stage : stages_) {
    all.push_back(stage.get());
  }
  return all;
}

std::vector<const Decoder*> ValueModel::stages() const {
  std::vector<const Decoder*> all;
  for (const auto& stage : stages_) {
    all.push_back(stage.get());
  }
  return all;
}

at::Tensor ValueModel::values(const at::Tensor& hidden_nE) const {
  TORCH_CHECK(hidden_nE.dim() == 2 && hidden_nE.size(1) == trunk().config().hidden_size,
              "value model: hidden states must be [n, ", trunk().config().hidden_size, "], got ",
              hidden_nE.sizes());
  TORCH_CHECK(head_ != nullptr, "value model: another rank has the head");
  const at::ScalarType master = head_->flat().scalar_type();
  const auto parameters = head_->gathered().materialize(master);  // weight, bias
  return apply_linear(hidden_nE.to(master), parameters[0], head_bias_ ? parameters[1] : Weight())
      .squeeze(1);
}

int64_t ValueModel::tensor_bytes(const EntryCounts& entries) const {
  return (entries.ranks - 1) * entries.own * head_->flat().element_size();
}

std::vector<ParamUnit*> ValueModel::units() {
  std::vector<ParamUnit*> all;
  for (const auto& stage : stages_) {
    std::ranges::copy(stage->units(), std::back_inserter(all));
  }
  if (head_ != nullptr) {
    all.push_back(head_.get());
  }
  return all;
}

std::vector<const ParamUnit*> ValueModel::units() const {
  std::vector<const ParamUnit*> all;
  for (const auto& stage : stages_) {
    std::ranges::copy(std::as_const(*stage).units(), std::back_inserter(all));
  }
  if (head_ != nullptr) {
    all.push_back(head_.get());
  }
  return all;
}

}  // namespace ringside::engine
