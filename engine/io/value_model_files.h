// Hugging Face directory of a value model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/models/value_model.h"
#include "engine/models/weight_export.h"

namespace ringside::engine {

// Fills the trunk from the weight files of a language model or a value model, whole or sharded.
// Reads the head under the first of these names, and its bias, which is 0 when missing:
//   score.weight: transformers' ForTokenClassification and ForSequenceClassification with one
//     label, verl, value_model_files
//   v_head.summary.weight: TRL's AutoModelForCausalLMWithValueHead
//   value_head.weight: others
// Without any of them the head becomes zero. A bias is refused by a head without one. Skips
// lm_head.weight and what is_passed_over() names. Throws: std::runtime_error naming file or
// directory and tensor when one is missing, occurs twice, has another shape or a dtype that is not
// floating-point, or belongs to no parameter. The model is then partly filled. Not collective.
void load_value_weights(const std::filesystem::path& dir, ValueModel& model);

// Checks the files' headers without reading values. Returns one sentence for each tensor that
// load_value_weights would refuse for a head without a bias: missing, another shape, a dtype that
// is not floating-point, or no such parameter. config: of the language or value model. Throws:
// std::runtime_error when a file cannot be read or is not safetensors.
std::vector<std::string> check_reward_headers(const std::filesystem::path& dir,
                                              const ModelConfig& config);

// Sink of a value model's weights: writes config.json and the weights in master precision into an
// existing directory, in files of at most max_shard_bytes. load_value_weights reads it, and
// transformers: as AutoModelForTokenClassification with one label, or without a bias of the head as
// AutoModelForSequenceClassification, which reads the last token that is not the padding. Neither
// atomic nor durable: write into an AtomicDirectory's path. Holds one unit at a time.
// Throws, when it is called: std::runtime_error on a write failure; c10::Error on a max_shard_bytes
// below 1.
WeightSink value_model_files(const std::filesystem::path& dir,
                             int64_t max_shard_bytes = int64_t{5} << 30);

// The files of value_model_files() but the weights, of a model without a bias of the head, with the
// tokenizer's files of a directory.
// Throws: std::runtime_error on a write failure.
void save_reward_description(const ModelConfig& trunk, const std::filesystem::path& dir,
                             at::ScalarType compute_dtype, const std::filesystem::path& copy_from);

// Whether a directory's config.json is that of a sequence classifier.
// Throws: std::runtime_error when it cannot be read.
bool is_sequence_classifier(const std::filesystem::path& dir);

}  // namespace ringside::engine
