#include "engine/io/hf_directory.h"

#include <ATen/ATen.h>

#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/disk_file.h"
#include "engine/io/json_object.h"
#include "engine/io/safetensors.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.weight";

constexpr std::array<std::string_view, 9> kTokenizerFiles = {"tokenizer.json",
                                                             "tokenizer_config.json",
                                                             "special_tokens_map.json",
                                                             "added_tokens.json",
                                                             "vocab.json",
                                                             "merges.txt",
                                                             "chat_template.jinja",
                                                             "chat_template.json",
                                                             "generation_config.json"};

// What to do about weights that are there in another form.
std::string other_form(const fs::path& dir) {
  if (fs::exists(dir / "pytorch_model.bin") || fs::exists(dir / "pytorch_model.bin.index.json")) {
    return ", only pytorch_model.bin; convert it with transformers' "
           "save_pretrained(safe_serialization=True)";
  }
  if (fs::exists(dir / "adapter_config.json")) {
    return ", only an adapter (adapter_config.json); merge it into its base model first";
  }
  return "";
}

// Every tensor of a directory by name, over all of its files.
class WeightFiles {
 public:
  explicit WeightFiles(const fs::path& dir) : dir_(dir) {
    if (fs::exists(dir / kSingleFile)) {
      add_file(dir / kSingleFile);
    } else if (fs::exists(dir / kIndexFile)) {
      add_shards(dir / kIndexFile);
    } else {
      throw std::runtime_error(dir.string() + ": neither " + std::string(kSingleFile) + " nor " +
                               std::string(kIndexFile) + " is there" + other_form(dir));
    }
  }

  // Names not yet taken.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, place] : places_) {
      result.push_back(name);
    }
    return result;
  }

  bool contains(const std::string& name) const { return places_.count(name) != 0; }

  // "<file>: tensor '<name>'", for messages.
  std::string describe(const std::string& name) const {
    return files_[places_.at(name).file].path().string() + ": tensor '" + name + "'";
  }

  at::Tensor read(const std::string& name) const {
    const Place place = places_.at(name);
    return files_[place.file].tensor(place.entry);
  }

  const SafetensorsEntry& entry(const std::string& name) const {
    const Place place = places_.at(name);
    return files_[place.file].entries()[place.entry];
  }

  // The tensor of a parameter, which each file may serve once.
  at::Tensor take(const std::string& name) {
    if (!contains(name)) {
      throw std::runtime_error(dir_.string() + ": tensor '" + name +
                               "' is in none of the weight files");
    }
    at::Tensor tensor = read(name);
    places_.erase(name);
    return tensor;
  }

 private:
  struct Place {
    std::size_t file;
    std::size_t entry;
  };

  void add_file(const fs::path& path) {
    files_.emplace_back(path);
    const auto& entries = files_.back().entries();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (contains(entries[i].name)) {
        throw std::runtime_error(path.string() + ": tensor '" + entries[i].name + "' is also in " +
                                 files_[places_.at(entries[i].name).file].path().string());
      }
      places_[entries[i].name] = {files_.size() - 1, i};
    }
  }

  void add_shards(const fs::path& index_path) {
    const JsonObject index = JsonObject::read(index_path);
    const JsonObject map = index.require(index.object("weight_map"), "weight_map");
    std::map<std::string, std::string> file_of;
    std::set<std::string> shards;
    for (const auto& [name, value] : map.json().items()) {
      const std::string shard = map.require(map.text(name), name);
      if (fs::path(shard).filename() != shard) {
        map.fail(name, "is '" + shard + "', expected a file beside the index");
      }
      file_of[name] = shard;
      shards.insert(shard);
    }
    for (const std::string& shard : shards) {
      add_file(dir_ / shard);
    }
    for (const auto& [name, shard] : file_of) {
      if (!contains(name) || files_[places_.at(name).file].path().filename() != shard) {
        map.fail(name, "is '" + shard + "', which does not hold that tensor");
      }
    }
  }

  fs::path dir_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_;
};

// What is wrong with the stored tensor of a parameter of this shape by its header; "" when it fits.
std::string header_problem(const WeightFiles& files, const std::string& name,
                           at::IntArrayRef shape) {
  const SafetensorsEntry& entry = files.entry(name);
  if (at::IntArrayRef(entry.shape) != shape) {
    return files.describe(name) + " has shape " + c10::str(at::IntArrayRef(entry.shape)) +
           ", the configuration asks for " + c10::str(shape);
  }
  if (!at::isFloatingType(entry.dtype)) {
    return files.describe(name) + " has dtype " + c10::toString(entry.dtype) +
           ", expected a floating-point one";
  }
  return "";
}

void fill(const at::Tensor& parameter, WeightFiles& files, const std::string& name) {
  const std::string where = files.contains(name) ? files.describe(name) : name;
  const std::string wrong =
      files.contains(name) ? header_problem(files, name, parameter.sizes()) : "";
  if (!wrong.empty()) {
    throw std::runtime_error(wrong);
  }
  const at::Tensor stored = files.take(name);
  parameter.copy_(stored);
  if (!at::isfinite(parameter).all().item<bool>()) {
    throw std::runtime_error(
        where + " holds values that are not finite (NaN or infinite); these weights are broken");
  }
}

// A buffer that old transformers versions saved.
bool is_old_buffer(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

// Old buffers, and the second name of a tied embedding.
bool is_harmless(const WeightFiles& files, const std::string& name, const at::Tensor* tied_head) {
  if (is_old_buffer(name)) {
    return true;
  }
  if (tied_head == nullptr || name != kHead) {
    return false;
  }
  const at::Tensor head = files.read(name);
  return head.scalar_type() == tied_head->scalar_type() && head.equal(*tied_head);
}

void refuse_unexpected(const WeightFiles& files, const at::Tensor* tied_head) {
  for (const std::string& name : files.names()) {
    if (is_harmless(files, name, tied_head)) {
      continue;
    }
    if (tied_head != nullptr && name == kHead) {
      throw std::runtime_error(files.describe(name) + " differs from " + std::string(kEmbedding) +
                               ", but config.json says tie_word_embeddings: true");
    }
    throw std::runtime_error(files.describe(name) + " belongs to no parameter of the model");
  }
}

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      TORCH_CHECK(false, "storage dtype is ", dtype, ", expected Double, Float, BFloat16 or Half");
  }
}

// Tensors in order, cut before the one that would exceed the limit.
std::vector<std::vector<TensorToWrite>> make_shards(const std::vector<TensorToWrite>& tensors,
                                                    int64_t max_bytes) {
  std::vector<std::vector<TensorToWrite>> shards(1);
  int64_t used = 0;
  for (const TensorToWrite& t : tensors) {
    const int64_t bytes = t.tensor.numel() * static_cast<int64_t>(c10::elementSize(t.dtype));
    if (used > 0 && used + bytes > max_bytes) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(t);
    used += bytes;
  }
  return shards;
}

std::string shard_name(std::size_t i, std::size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", i + 1, count);
  return name.data();
}

// A directory that held another number of files must not keep the old ones beside the new.
void remove_weights(const fs::path& dir) {
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (name == kIndexFile || (name.starts_with("model") && name.ends_with(".safetensors"))) {
      old.push_back(entry.path());
    }
  }
  for (const fs::path& path : old) {
    fs::remove(path);
  }
}

void write_weights(const fs::path& dir, std::vector<std::vector<TensorToWrite>> shards) {
  remove_weights(dir);
  if (shards.size() == 1) {
    write_safetensors(dir / kSingleFile, std::move(shards.front()));
    return;
  }
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    for (const TensorToWrite& t : shards[i]) {
      weight_map[t.name] = name;
      total += t.tensor.numel() * static_cast<int64_t>(c10::elementSize(t.dtype));
    }
    write_safetensors(dir / name, std::move(shards[i]));
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                        {"weight_map", weight_map}};
  write_text(dir / kIndexFile, index.dump(2) + "\n");
}

}  // namespace

Decoder load_decoder(const fs::path& dir, at::ScalarType compute_dtype) {
  Decoder decoder(load_model_config(dir), compute_dtype);
  load_weights(dir, decoder);
  return decoder;
}

void load_weights(const fs::path& dir, Decoder& decoder) {
  const at::NoGradGuard no_grad;
  WeightFiles files(dir);
  at::Tensor embedding;
  for (ParamUnit* unit : decoder.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      const std::string& name = unit->specs()[i].name;
      if (name == kEmbedding && decoder.config().tie_word_embeddings && files.contains(name)) {
        embedding = files.read(name);
      }
      fill(unit->view(i), files, name);
    }
  }
  refuse_unexpected(files, embedding.defined() ? &embedding : nullptr);
}

std::vector<std::string> check_weight_headers(const fs::path& dir, const ModelConfig& config) {
  std::vector<std::string> problems;
  const WeightFiles files(dir);
  std::set<std::string> expected;
  for (const ParamSpec& spec : decoder_specs(config)) {
    expected.insert(spec.name);
    std::string problem = files.contains(spec.name) ? header_problem(files, spec.name, spec.shape)
                                                    : dir.string() + ": tensor '" + spec.name +
                                                          "' is in none of the weight files";
    if (!problem.empty()) {
      problems.push_back(std::move(problem));
    }
  }
  for (const std::string& name : files.names()) {
    const bool tied_head =
        config.tie_word_embeddings && name == kHead;  // load_weights compares its values
    if (!expected.contains(name) && !tied_head && !is_old_buffer(name)) {
      problems.push_back(files.describe(name) + " belongs to no parameter of the model");
    }
  }
  return problems;
}

void save_decoder(const Decoder& decoder, const fs::path& dir, at::ScalarType storage_dtype,
                  const SaveOptions& options) {
  save_model(decoder.config(), tensors_to_write(decoder, storage_dtype), dir, storage_dtype,
             options);
}

std::vector<TensorToWrite> tensors_to_write(const Decoder& decoder, at::ScalarType storage_dtype) {
  std::vector<TensorToWrite> tensors;
  for (const ParamUnit* unit : decoder.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      tensors.push_back({unit->specs()[i].name, unit->view(i), storage_dtype});
    }
  }
  return tensors;
}

void save_model(const ModelConfig& config, const std::vector<TensorToWrite>& tensors,
                const fs::path& dir, at::ScalarType storage_dtype, const SaveOptions& options) {
  TORCH_CHECK(options.max_shard_bytes > 0, "max_shard_bytes is ", options.max_shard_bytes,
              ", expected at least 1");
  const std::string dtype = dtype_name(storage_dtype);
  write_text(dir / "config.json", model_config_json(config, dtype));
  write_text(dir / "generation_config.json", generation_config_json(config));
  if (!options.copy_tokenizer_from.empty()) {
    for (const std::string_view name : kTokenizerFiles) {
      const fs::path from = options.copy_tokenizer_from / name;
      if (fs::exists(from)) {
        fs::copy_file(from, dir / name, fs::copy_options::overwrite_existing);
      }
    }
  }
  write_weights(dir, make_shards(tensors, options.max_shard_bytes));
}

}  // namespace ringside::engine
