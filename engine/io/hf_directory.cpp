#include "engine/io/hf_directory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/disk_file.h"
#include "engine/io/kept_tensors.h"
#include "engine/io/safetensors.h"
#include "engine/io/weight_file_sink.h"
#include "engine/io/weight_files.h"
#include "engine/io/weight_stream.h"
#include "engine/json/json_object.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

std::string embedding_name(const ModelConfig& config) {
  return trunk_prefix(config) + "embed_tokens.weight";
}

constexpr std::array<std::string_view, 12> kTokenizerFiles = {"tokenizer.json",
                                                              "tokenizer_config.json",
                                                              "special_tokens_map.json",
                                                              "added_tokens.json",
                                                              "vocab.json",
                                                              "merges.txt",
                                                              "chat_template.jinja",
                                                              "chat_template.json",
                                                              "generation_config.json",
                                                              "preprocessor_config.json",
                                                              "video_preprocessor_config.json",
                                                              "processor_config.json"};

// The second name of a tied embedding.
bool is_second_name(const WeightFiles& files, const std::string& name, const ModelConfig& config,
                    const at::Tensor* tied_head) {
  if (tied_head == nullptr || name != config.on_disk.head) {
    return false;
  }
  const at::Tensor head = files.read(name);
  return head.scalar_type() == tied_head->scalar_type() && head.equal(*tied_head);
}

void refuse_unexpected(const WeightFiles& files, const ModelConfig& config,
                       const at::Tensor* tied_head) {
  std::set<std::string> of_other_stages;
  for (const ParamSpec& spec : decoder_specs(config)) {
    of_other_stages.insert(spec.name);
  }
  for (const std::string& name : files.names()) {
    if (of_other_stages.contains(name) || is_passed_over(config, name) ||
        is_second_name(files, name, config, tied_head)) {
      continue;
    }
    if (tied_head != nullptr && name == config.on_disk.head) {
      throw std::runtime_error(files.describe(name) + " differs from " + embedding_name(config) +
                               ", but config.json says tie_word_embeddings: true");
    }
    throw std::runtime_error(files.describe(name) + " belongs to no parameter of the model");
  }
}

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 4> kStorageDtypes = {
    {{at::kDouble, "float64"},
     {at::kFloat, "float32"},
     {at::kBFloat16, "bfloat16"},
     {at::kHalf, "float16"}}};

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [value, name] : kStorageDtypes) {
    if (value == dtype) {
      return std::string(name);
    }
  }
  TORCH_CHECK(false, "storage dtype is ", dtype, ", expected Double, Float, BFloat16 or Half");
}

}  // namespace

Decoder load_decoder(const fs::path& dir, at::ScalarType compute_dtype,
                     const ReadOptions& options) {
  Decoder decoder(load_model_config(dir, options), compute_dtype);
  load_weights(dir, decoder);
  return decoder;
}

WeightLoader::WeightLoader(const fs::path& dir, const ModelConfig& config)
    : files_(dir, config),
      tied_embedding_(config.tie_word_embeddings ? embedding_name(config) : ""),
      config_(config) {
  if (!tied_embedding_.empty() && files_.contains(tied_embedding_)) {
    embedding_ = files_.read(tied_embedding_);
  }
}

void WeightLoader::operator()(const ParamUnit& unit) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < unit.specs().size(); ++i) {
    files_.fill(unit.storage(), i, unit.specs()[i].name);
  }
}

void WeightLoader::refuse_the_rest() const {
  refuse_unexpected(files_, config_, embedding_.defined() ? &embedding_ : nullptr);
}

void load_weights(const fs::path& dir, Decoder& decoder) {
  WeightLoader load(dir, decoder.config());
  for (ParamUnit* unit : decoder.units()) {
    load(*unit);
    unit->changed();
  }
  load.refuse_the_rest();
}

std::vector<std::string> check_weight_headers(const fs::path& dir, const ModelConfig& config) {
  const WeightFiles files(dir, config);
  const std::vector<ParamSpec> specs = decoder_specs(config);
  std::vector<std::string> problems = files.header_problems(specs);
  std::set<std::string> expected;
  for (const ParamSpec& spec : specs) {
    expected.insert(spec.name);
  }
  for (const std::string& name : files.names()) {
    const bool tied_head = config.tie_word_embeddings &&
                           name == config.on_disk.head;  // load_weights compares its values
    if (!expected.contains(name) && !tied_head && !is_passed_over(config, name)) {
      problems.push_back(files.describe(name) + " belongs to no parameter of the model");
    }
  }
  return problems;
}

std::map<std::string, int64_t> unused_tensors(const fs::path& dir, const ModelConfig& config) {
  std::map<std::string, int64_t> count;
  std::set<std::string> used;
  for (const ParamSpec& spec : decoder_specs(config)) {
    used.insert(spec.name);
  }
  for (const std::string& name : WeightFiles(dir, config).names()) {
    if (const std::string part = unused_part(config, name); !part.empty() && !used.contains(name)) {
      ++count[part];
    }
  }
  return count;
}

WeightSink model_files(const fs::path& dir, at::ScalarType storage_dtype,
                       const SaveOptions& options) {
  return [=](UnitExport& units) {
    const ModelConfig& config = units.weights().config();
    const KeptTensors kept(options.copy_from, config, storage_dtype);
    save_model_description(config, dir, storage_dtype, options.copy_from);
    write_weight_files(units, dir, storage_dtype, options.max_shard_bytes, kept);
  };
}

void save_decoder(const Decoder& decoder, const fs::path& dir, at::ScalarType storage_dtype,
                  const SaveOptions& options) {
  export_weights(decoder, model_files(dir, storage_dtype, options));
}

void save_model(const ModelConfig& config, const std::vector<TensorToWrite>& tensors,
                const fs::path& dir, at::ScalarType storage_dtype, const SaveOptions& options) {
  const KeptTensors kept(options.copy_from, config, storage_dtype);
  save_model_description(config, dir, storage_dtype, options.copy_from);
  std::vector<SafetensorsEntry> entries;
  for (const TensorToWrite& t : tensors) {
    entries.push_back({t.name, t.dtype, t.tensor.sizes().vec()});
  }
  std::ranges::copy(kept.entries(), std::back_inserter(entries));
  WeightStream stream(dir, std::move(entries), options.max_shard_bytes);
  for (const TensorToWrite& t : tensors) {
    stream.write(t.tensor);
  }
  kept.write(stream);
  stream.close();
}

at::ScalarType stored_dtype(const fs::path& dir) {
  const JsonObject config = JsonObject::read(dir / "config.json");
  const std::string text = config.require(config.text("dtype"), "dtype");
  for (const auto& [value, name] : kStorageDtypes) {
    if (name == text) {
      return value;
    }
  }
  config.fail("dtype", "is '" + text + "', expected float64, float32, bfloat16 or float16");
}

void save_model_description(const ModelConfig& config, const fs::path& dir,
                            at::ScalarType storage_dtype, const fs::path& copy_from) {
  const std::string dtype = dtype_name(storage_dtype);
  const KeptTensors kept(copy_from, config, storage_dtype);
  write_text(dir / "config.json", model_config_json(kept.described(config), dtype));
  write_text(dir / "generation_config.json", generation_config_json(config));
  if (copy_from.empty()) {
    return;
  }
  for (const std::string_view name : kTokenizerFiles) {
    const fs::path from = copy_from / name;
    if (fs::exists(from)) {
      fs::copy_file(from, dir / name, fs::copy_options::overwrite_existing);
    }
  }
}

}  // namespace ringside::engine
