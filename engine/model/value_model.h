// A value model: a decoder like the policy's whose head reads one number off a token's hidden state, the return expected
// from there on (PPO's critic, Schulman et al. 2017). Shapes: n = entries to value, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "engine/model/decoder.h"
#include "engine/model/model_config.h"
#include "engine/parallel/param_unit.h"

namespace ringside::engine {

// Threads as Decoder: not thread-safe for writing, const functions may be called by any number of threads meanwhile.
class ValueModel {
 public:
  // The trunk is Decoder(config, compute_dtype) with tie_word_embeddings set, whatever the config says: an LM head of
  // its own would only be memory that nothing reads. The head is zero: every value is 0 until it is loaded or trained.
  // Throws as Decoder does.
  ValueModel(ModelConfig config, at::ScalarType compute_dtype);

  // hidden_nE: the trunk's output at the entries, in compute dtype. Returns hidden . w + b, [n] in fp32 (fp64 for
  // doubles), differentiable towards hidden_nE and the head. n may be 0. Not collective. Throws c10::Error on another
  // hidden size.
  at::Tensor values(const at::Tensor& hidden_nE) const;

  Decoder& trunk() { return trunk_; }
  const Decoder& trunk() const { return trunk_; }

  // The parameters score.weight [1, E] and score.bias [1].
  ParamUnit& head() { return *head_; }
  const ParamUnit& head() const { return *head_; }

  // All trained units: the trunk's in their order, the head last. They stay where they are when the model is moved.
  std::vector<ParamUnit*> units();
  std::vector<const ParamUnit*> units() const;

 private:
  Decoder trunk_;
  std::unique_ptr<ParamUnit> head_;
};

// Fills the trunk from a Hugging Face directory's weight files, whole or sharded, of a language model or of a value
// model. The head is read where there is one, under the first of these names, its bias beside it or 0:
//   score.weight            transformers' ForTokenClassification with one label, verl; what save_value_model writes
//   v_head.summary.weight   TRL's AutoModelForCausalLMWithValueHead
//   value_head.weight       others
// Without any of them the head becomes zero. lm_head.weight and rotary_emb.inv_freq are passed over. Throws
// std::runtime_error that names file or directory and tensor when one is missing, comes twice, has another shape or no
// floating-point dtype, or belongs to no parameter; the model is then partly filled.
void load_value_weights(const std::filesystem::path& dir, ValueModel& model);

// Writes config.json (of a token classifier with one label) and model.safetensors in master precision into an existing
// directory; load_value_weights and transformers' AutoModelForTokenClassification read it. Neither atomic nor durable:
// write into an AtomicDirectory's path. Throws std::runtime_error on a write failure.
void save_value_model(const ValueModel& model, const std::filesystem::path& dir);

}  // namespace ringside::engine
