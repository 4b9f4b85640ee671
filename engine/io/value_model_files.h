// Hugging Face directory of a value model.
#pragma once

#include <filesystem>

#include "engine/models/value_model.h"

namespace ringside::engine {

// Fills the trunk from the weight files of a language model or a value model, whole or sharded.
// Reads the head under the first of these names, and its bias, which is 0 when missing:
//   score.weight: transformers' ForTokenClassification with one label, verl, save_value_model
//   v_head.summary.weight: TRL's AutoModelForCausalLMWithValueHead
//   value_head.weight: others
// Without any of them the head becomes zero. Skips lm_head.weight and rotary_emb.inv_freq.
// Throws: std::runtime_error naming file or directory and tensor when one is missing, occurs twice,
// has another shape or a dtype that is not floating-point, or belongs to no parameter. The model is
// then partly filled.
void load_value_weights(const std::filesystem::path& dir, ValueModel& model);

// Writes config.json (of a token classifier with one label) and model.safetensors in master
// precision into an existing directory. load_value_weights and transformers'
// AutoModelForTokenClassification read it. Neither atomic nor durable: write into an
// AtomicDirectory's path.
// Throws: std::runtime_error on a write failure.
void save_value_model(const ValueModel& model, const std::filesystem::path& dir);

}  // namespace ringside::engine
