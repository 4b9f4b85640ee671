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
#include "engine/io/safetensors.h"
#include "engine/io/weight_files.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

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

// Splits tensors, in order, into shards within the size limit.
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

// Removes old weight files, which must not stay beside new ones of another number.
void remove_weights(const fs::path& dir) {
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (name == kWeightIndexFile || (name.starts_with("model") && name.ends_with(".safetensors"))) {
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
    write_safetensors(dir / kSingleWeightFile, std::move(shards.front()));
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
  write_text(dir / kWeightIndexFile, index.dump(2) + "\n");
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
      files.fill(unit->view(i), name);
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
    std::string problem = files.contains(spec.name) ? files.header_problem(spec.name, spec.shape)
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
  const auto units = decoder.units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    at::Tensor values = decoder.effective_values(u);
    if (decoder.adapters() != nullptr) {
      values = values.to(storage_dtype);  // merged copies of every layer exist at once
    }
    for (std::size_t i = 0; i < units[u]->specs().size(); ++i) {
      tensors.push_back({units[u]->specs()[i].name, units[u]->view_of(values, i), storage_dtype});
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
