// Value model: a decoder with a head that maps a token's hidden state to one number: the expected
// return from that token on, or the reward of the document that ends there.
//
// Shapes: n = entries to value, E = hidden size.
// Source: PPO's critic, Schulman et al. 2017; reward models, Stiennon et al. 2020.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/models/headed_model.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// Thread safety: as Decoder: const functions from any thread while no thread writes parameters.
class ValueModel final : public HeadedModel {
 public:
  // The trunk is Decoder(config, context) with tie_word_embeddings set, so that no unused LM head
  // is allocated; in a pipeline the stages of this rank. The head is zero: every value is 0 until
  // the head is loaded or trained. head_bias: a reward model has none, as transformers' sequence
  // classifiers.
  // Throws: as Decoder does.
  ValueModel(ModelConfig config, const ComputeContext& context, bool head_bias = true);

  // hidden . w + b, without b where the head has no bias; differentiable towards hidden_nE and the
  // head. Shapes: hidden_nE: the trunk's output at the entries, in compute dtype; n may be 0;
  // returns [n] in fp32 (fp64 for doubles). Collective over: the shard of a sharded model. Throws:
  // c10::Error on another hidden size.
  at::Tensor values(const at::Tensor& hidden_nE) const;

  HeadOutput apply_head(const HeadInput& input) const override {
    // Every tensor rank computes the same loss of all values, from own ones.
    return {
        {},
        {},
        input.entries.entry_order(replicate_rows(values(input.hidden_nE), input.entries.ranks))};
  }
  int64_t tensor_bytes(const EntryCounts& entries) const override;

  std::vector<Decoder*> stages() override;
  std::vector<const Decoder*> stages() const override;

  bool head_bias() const { return head_bias_; }
  // The parameters score.weight [1, E] and, with a bias, score.bias [1], of a model that scores.
  ParamUnit& head() { return *head_; }
  const ParamUnit& head() const { return *head_; }
  // Name and shape of the head's parameters for a trunk of this configuration.
  static std::vector<ParamSpec> head_specs(const ModelConfig& config, bool bias);

  // All trained units: the stages' in order, the head last. Their addresses stay valid when the
  // model is moved.
  std::vector<ParamUnit*> units() override;
  std::vector<const ParamUnit*> units() const;

 private:
  std::vector<std::unique_ptr<Decoder>> stages_;
  bool head_bias_;
  std::unique_ptr<ParamUnit> head_;  // null where another rank has it
};

}  // namespace ringside::engine
