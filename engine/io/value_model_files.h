// Hugging Face directory of a value model.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/models/value_model.h"
#include "engine/models/weight_export.h"

namespace ringside::engine {

// Fills the trunk from the weight files of a language model or a value model, whole or sharded.
// Reads the head under the first of these names, and its bias, which is 0 when missing:
//   score.weight: transformers' ForTokenClassification with one label, verl, value_model_files
//   v_head.summary.weight: TRL's AutoModelForCausalLMWithValueHead
//   value_head.weight: others
// Without any of them the head becomes zero. Skips lm_head.weight and what
// is_passed_over() names.
// Throws: std::runtime_error naming file or directory and tensor when one is missing, occurs twice,
// has another shape or a dtype that is not floating-point, or belongs to no parameter. The model is
// then partly filled. Not collective.
void load_value_weights(const std::filesystem::path& dir, ValueModel& model);

// Sink of a value model's weights: writes config.json (of a token classifier with one label) and
// the weights in master precision into an existing directory, in files of at most max_shard_bytes.
// load_value_weights and transformers' AutoModelForTokenClassification read it. Neither atomic nor
// durable: write into an AtomicDirectory's path. Holds one unit at a time.
// Throws, when it is called: std::runtime_error on a write failure; c10::Error on a max_shard_bytes
// below 1.
WeightSink value_model_files(const std::filesystem::path& dir,
                             int64_t max_shard_bytes = int64_t{5} << 30);

}  // namespace ringside::engine
