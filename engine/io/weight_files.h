// The weight files of a Hugging Face directory: every tensor by name, over all of its files.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/architectures/quantisation_fields.h"
#include "engine/io/safetensors.h"
#include "engine/layers/model_config.h"
#include "engine/params/unit_storage.h"

namespace ringside::engine {

inline constexpr std::string_view kSingleWeightFile = "model.safetensors";
inline constexpr std::string_view kWeightIndexFile = "model.safetensors.index.json";

// Removes weight files of a Hugging Face directory, which must not stay beside new ones of another
// number.
// Throws: std::filesystem::filesystem_error.
void remove_weight_files(const std::filesystem::path& dir);

// Whether a directory has such files.
bool has_weight_files(const std::filesystem::path& dir);

// Whether the tensor belongs to a layer that predicts further tokens.
bool predicts_further(const ModelConfig& config, std::string_view name);

// The part of a model's files that a tensor belongs to and that is not loaded, as the beginning of
// its names: layers that predict further tokens, a vision tower. "" for other tensors.
std::string unused_part(const ModelConfig& config, std::string_view name);

// Whether a tensor of a model's files is no parameter and rightly so: of an unused_part(), or a
// buffer that old versions of transformers saved.
bool is_passed_over(const ModelConfig& config, std::string_view name);

// Maps the files; reads no tensor before it is asked for.
// Thread safety: none.
class WeightFiles {
 public:
  // model.safetensors, or the shards that model.safetensors.index.json names.
  // Throws: std::runtime_error naming file and tensor when neither is there, a tensor is stored
  // twice, or the index does not fit its shards.
  explicit WeightFiles(const std::filesystem::path& dir);

  // Those of a model's directory under the names and shapes of its parameters: other names that
  // such files have, and the experts of a layer in two tensors, stand for them (OnDiskConfig).
  // Throws: also on such a tensor of another shape.
  WeightFiles(const std::filesystem::path& dir, const ModelConfig& config);

  // All tensors of one file.
  // Throws: std::runtime_error as SafetensorsFile.
  static WeightFiles of_file(const std::filesystem::path& file);

  // Names not yet taken. Those of a model that was saved without its head (Qwen3-Embedding) get the
  // "model." that they lack. A tensor in bitsandbytes' nf4 form, in MXFP4 or in FP8 is one name,
  // without its parts.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return places_.count(name) != 0; }

  // "<file>: tensor '<name>'", for messages.
  // Throws: std::out_of_range for a name not contained; also read() and header_problem().
  std::string describe(const std::string& name) const;
  // The tensor on the CPU, as stored; a packed one unpacked to fp32.
  // Throws: std::runtime_error naming file and tensor when its packed form is damaged.
  at::Tensor read(const std::string& name) const;

  // Name, dtype and shape of what read() gives. unpacked: the dtype that is wanted of packed ones.
  // Throws: as read().
  SafetensorsEntry header(const std::string& name, at::ScalarType unpacked) const;

  // What is wrong, by its header, with the stored tensor of a parameter of this shape; "" when it
  // fits.
  std::string header_problem(const std::string& name, at::IntArrayRef shape) const;
  // Those of all these parameters, and which of them are in no file.
  std::vector<std::string> header_problems(const std::vector<ParamSpec>& specs) const;

  // Copies this rank's range of the stored tensor, cast, into parameter i of the unit, and takes
  // the name: a stored tensor serves one parameter. Reads nothing else of the tensor.
  // Throws: std::runtime_error naming file and tensor when it is absent, of another shape, of no
  // floating-point dtype, or holds a NaN or an infinity in that range.
  void fill(const UnitStorage& unit, std::size_t i, const std::string& name);

 private:
  // A matrix in a tensor of all experts of a layer.
  struct Slice {
    int64_t expert, begin, rows;
    bool inputs_first;
  };
  struct Place {
    std::size_t file;
    std::size_t entry;
    std::optional<Slice> slice = {};
  };

  WeightFiles() = default;
  void add_file(const std::filesystem::path& path);
  void add_shards(const std::filesystem::path& index_path);
  // Puts the names of parameters in place of others.
  void rename(const std::string& beginning, const std::string& replacement);
  void split_stacks(const ModelConfig& config);
  void split_stack(const std::string& name, const ModelConfig& config);
  // Puts "model." before names that lack it, as files of a model without head do.
  void complete_names();
  void hide_nf4_parts();
  // Names the unpacked tensors in place of their blocks.
  void hide_mxfp4_parts();
  // Keeps the scales of FP8 matrices apart, and drops those of activations.
  void hide_fp8_scales();
  ScaleBlock fp8_block_of(const std::string& name) const;
  bool is_nf4(const std::string& name) const;
  bool is_fp8(const std::string& name) const { return fp8_scales_.contains(name); }
  bool is_mxfp4(const std::string& name) const { return mxfp4_scales_.contains(name); }
  // Throws: std::runtime_error naming a packed tensor that is wrong.
  std::vector<int64_t> shape_of(const std::string& name) const;
  at::Tensor read_part(const std::string& name) const;
  // Elements [begin, end) of the flattened tensor.
  at::Tensor read_range(const std::string& name, int64_t begin, int64_t end) const;
  const SafetensorsEntry& entry(const Place& place) const;
  at::Tensor tensor(const Place& place) const;

  std::filesystem::path dir_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_;
  std::map<std::string, Place> nf4_parts_;  // of tensors in places_
  std::map<std::string, Place>
      mxfp4_scales_;                         // of tensors in places_, whose places are the blocks'
  std::map<std::string, Place> fp8_scales_;  // of tensors in places_
  ScaleBlock fp8_block_;                     // of quantization_config in config.json
};

}  // namespace ringside::engine
