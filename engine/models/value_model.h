// A value model: a decoder whose head reads one number off a token's hidden state, the return
// expected from there on (PPO's critic, Schulman et al. 2017). Shapes: n = entries to value, E =
// hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/models/headed_model.h"
#include "engine/models/model_config.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// Threads as Decoder: not thread-safe for writing, const functions may be called by any number of
// threads meanwhile.
class ValueModel final : public HeadedModel {
 public:
  // The trunk is Decoder(config, context) with tie_word_embeddings set, whatever the config says:
  // an LM head of its own would only be memory that nothing reads. The head is zero: every value is
  // 0 until it is loaded or trained. Throws as Decoder does.
  ValueModel(ModelConfig config, const ComputeContext& context);

  // hidden_nE: the trunk's output at the entries, in compute dtype. Returns hidden . w + b, [n] in
  // fp32 (fp64 for doubles), differentiable towards hidden_nE and the head. n may be 0. Not
  // collective. Throws c10::Error on another hidden size.
  at::Tensor values(const at::Tensor& hidden_nE) const;

  HeadOutput apply_head(const at::Tensor& hidden_nE, const ModelInput& input) const override {
    return {{}, {}, values(hidden_nE)};
  }

  Decoder& trunk() override { return trunk_; }
  const Decoder& trunk() const override { return trunk_; }

  // The parameters score.weight [1, E] and score.bias [1].
  ParamUnit& head() { return *head_; }
  const ParamUnit& head() const { return *head_; }

  // All trained units: the trunk's in their order, the head last. They stay where they are when the
  // model is moved.
  std::vector<ParamUnit*> units() override;
  std::vector<const ParamUnit*> units() const;

 private:
  Decoder trunk_;
  std::unique_ptr<ParamUnit> head_;
};

}  // namespace ringside::engine
