// Hugging Face directory of a model: config.json, model.safetensors whole or in shards, tokenizer
// files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/io/model_config_json.h"
#include "engine/io/safetensors.h"
#include "engine/io/weight_files.h"
#include "engine/models/decoder.h"
#include "engine/models/weight_export.h"

namespace ringside::engine {

// Reads config.json and the weights into a decoder on the CPU, whole on this rank. A vision tower
// is constant.
// Throws: std::runtime_error as load_model_config and load_weights do; c10::Error as Decoder.
Decoder load_decoder(const std::filesystem::path& dir, at::ScalarType compute_dtype,
                     const ReadOptions& options = {});

// Weights of a directory on their way into a decoder's units: model.safetensors, or the shards
// named in model.safetensors.index.json. Reads through a mapping, so there is no second copy of the
// model. Not collective. Thread safety: none.
class WeightLoader {
 public:
  // Throws: std::runtime_error as WeightFiles.
  WeightLoader(const std::filesystem::path& dir, const ModelConfig& config);

  // Fills this rank's range of every parameter of a unit of Decoder::units(), cast to the dtype
  // that is stored. Tensors in bitsandbytes' nf4 form are unpacked. Throws: std::runtime_error
  // naming file and tensor when one is missing, has another shape, a dtype that is not
  // floating-point or a value that is not finite.
  void operator()(const ParamUnit& unit);

  // Call it after the last unit. Passes over only parameters of other stages of the model, what
  // is_passed_over() names and, for tied embeddings, an lm_head.weight equal to the embedding.
  // Throws: std::runtime_error naming file and tensor when one belongs to no parameter.
  void refuse_the_rest() const;

 private:
  WeightFiles files_;
  std::string tied_embedding_;  // the name; empty: there is a head of its own
  at::Tensor embedding_;        // as stored, if tied_embedding_ is in the files
  ModelConfig config_;
};

// Fills all parameters of `decoder` by a WeightLoader.
// Throws: as WeightLoader. The decoder is then partly filled.
void load_weights(const std::filesystem::path& dir, Decoder& decoder);

// Checks the files' headers without reading values. Returns one sentence for each tensor that
// load_weights would refuse: missing, another shape, a dtype that is not floating-point, or no such
// parameter.
// Throws: std::runtime_error when a file cannot be read or is not safetensors.
std::vector<std::string> check_weight_headers(const std::filesystem::path& dir,
                                              const ModelConfig& config);

// Tensors of the files that belong to parts of the model that are neither loaded nor saved, as
// unused_part() names them, with their number.
// Throws: as check_weight_headers.
std::map<std::string, int64_t> unused_tensors(const std::filesystem::path& dir,
                                              const ModelConfig& config);

// How a model is written.
struct SaveOptions {
  // Most bytes of tensors in one file. Larger models are sharded and indexed. A single larger
  // tensor gets its own file.
  int64_t max_shard_bytes = int64_t{5} << 30;
  // Directory of the model that training began with; empty = none. Its tokenizer files,
  // generation_config.json and layers that predict further tokens (KeptTensors) are copied.
  std::filesystem::path copy_from;
};

// Sink that writes config.json of the whole model, generation_config.json and the weights in
// storage_dtype (kFloat, kDouble, kBFloat16 or kHalf) into an existing directory; replaces files of
// these names. Neither atomic nor durable: write into an AtomicDirectory's path. Holds one unit at
// a time. Throws, when it is called: std::runtime_error on a write failure; c10::Error on another
// dtype or a max_shard_bytes below 1; as KeptTensors.
WeightSink model_files(const std::filesystem::path& dir, at::ScalarType storage_dtype,
                       const SaveOptions& options = {});

// Writes a decoder that is whole on this rank by model_files(). Not collective.
// Throws: as model_files(); c10::Error for a sharded decoder.
void save_decoder(const Decoder& decoder, const std::filesystem::path& dir,
                  at::ScalarType storage_dtype, const SaveOptions& options = {});

// save_decoder() for a model given as tensors in order, each cast to its own dtype. storage_dtype
// is the dtype written to config.json.
// Throws: as save_decoder(). Not collective.
void save_model(const ModelConfig& config, const std::vector<TensorToWrite>& tensors,
                const std::filesystem::path& dir, at::ScalarType storage_dtype,
                const SaveOptions& options = {});

// The files of save_model() but the weights: config.json, generation_config.json and, from another
// directory if copy_from is not empty, the tokenizer's. The config.json announces layers that
// predict further tokens if that directory has such.
// Throws: std::runtime_error on a write failure; c10::Error on another dtype; as KeptTensors.
void save_model_description(const ModelConfig& config, const std::filesystem::path& dir,
                            at::ScalarType storage_dtype, const std::filesystem::path& copy_from);

// The dtype that a directory's config.json names for its weights under the key "dtype", as this
// program and transformers 5 write it.
// Throws: std::runtime_error naming file and key when it is missing or none of float64, float32,
// bfloat16 and float16.
at::ScalarType stored_dtype(const std::filesystem::path& dir);

}  // namespace ringside::engine
