// A value model as a Hugging Face directory.
#pragma once

#include <filesystem>

#include "engine/models/value_model.h"

namespace ringside::engine {

// Fills the trunk from a Hugging Face directory's weight files, whole or sharded, of a language
// model or of a value model. The head is read where there is one, under the first of these names,
// its bias beside it or 0:
//   score.weight            transformers' ForTokenClassification with one label, verl; what
//   save_value_model writes v_head.summary.weight   TRL's AutoModelForCausalLMWithValueHead
//   value_head.weight       others
// Without any of them the head becomes zero. lm_head.weight and rotary_emb.inv_freq are passed
// over. Throws std::runtime_error that names file or directory and tensor when one is missing,
// comes twice, has another shape or no floating-point dtype, or belongs to no parameter; the model
// is then partly filled.
void load_value_weights(const std::filesystem::path& dir, ValueModel& model);

// Writes config.json (of a token classifier with one label) and model.safetensors in master
// precision into an existing directory; load_value_weights and transformers'
// AutoModelForTokenClassification read it. Neither atomic nor durable: write into an
// AtomicDirectory's path. Throws std::runtime_error on a write failure.
void save_value_model(const ValueModel& model, const std::filesystem::path& dir);

}  // namespace ringside::engine
