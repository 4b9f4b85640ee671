// A model as a Hugging Face directory: config.json, model.safetensors whole or in shards, tokenizer
// files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "engine/io/model_config_json.h"
#include "engine/io/safetensors.h"
#include "engine/models/decoder.h"

namespace ringside::engine {

// Reads config.json and the weights. Throws std::runtime_error as load_model_config and
// load_weights do.
Decoder load_decoder(const std::filesystem::path& dir, at::ScalarType compute_dtype);

// Fills every parameter of `decoder` from model.safetensors, or from the shards that
// model.safetensors.index.json names, cast to the master dtype. Throws std::runtime_error that
// names file and tensor when one is missing, comes twice, has another shape or no floating-point
// dtype or a value that is not finite, or belongs to no parameter; only rotary_emb.inv_freq and,
// for tied embeddings, an lm_head.weight equal to the embedding are passed over. The decoder is
// then partly filled. Reads through a mapping, so that no second copy of the model exists.
void load_weights(const std::filesystem::path& dir, Decoder& decoder);

// What load_weights would refuse, as far as the files' headers tell: every tensor that is missing,
// has another shape or no floating-point dtype, or belongs to no parameter, a sentence each. Reads
// no values. Throws std::runtime_error when a file cannot be read or is none of safetensors.
std::vector<std::string> check_weight_headers(const std::filesystem::path& dir,
                                              const ModelConfig& config);

struct SaveOptions {
  // A file's tensors take at most so many bytes (a single larger tensor has a file of its own);
  // above it weights are sharded and indexed.
  int64_t max_shard_bytes = int64_t{5} << 30;
  // Directory whose tokenizer files and generation_config.json are copied along; empty = none.
  std::filesystem::path copy_tokenizer_from;
};

// Writes config.json, generation_config.json and the weights in storage_dtype (kFloat, kDouble,
// kBFloat16 or kHalf) into an existing directory, over what it holds of those names. Neither atomic
// nor durable: write into an AtomicDirectory's path. Not collective. Throws std::runtime_error on a
// write failure, c10::Error on another dtype or a max_shard_bytes below 1.
void save_decoder(const Decoder& decoder, const std::filesystem::path& dir,
                  at::ScalarType storage_dtype, const SaveOptions& options = {});

// The same for a model that is given as its tensors, in order, each cast to its own dtype;
// storage_dtype is what config.json says.
void save_model(const ModelConfig& config, const std::vector<TensorToWrite>& tensors,
                const std::filesystem::path& dir, at::ScalarType storage_dtype,
                const SaveOptions& options = {});

// The parameters in order, each to be cast to storage_dtype: views, not copies.
std::vector<TensorToWrite> tensors_to_write(const Decoder& decoder, at::ScalarType storage_dtype);

}  // namespace ringside::engine
