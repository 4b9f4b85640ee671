#include "rl/checkpoint/export.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/io/atomic_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/io/kept_tensors.h"
#include "engine/io/value_model_files.h"
#include "engine/io/weight_files.h"
#include "engine/io/weight_stream.h"
#include "engine/json/json_object.h"
#include "rl/checkpoint/checkpoint_reader.h"

namespace ringside::rl {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModelFolder = "model";
constexpr const char* kPolicy = "policy/";
// Of a model with tensors that the run does not train: {"directory": the one that has them,
// "vision": whether some are a vision tower's, "further": or of layers that predict further
// tokens, "trains_further": whether the run trains what it can of those layers}.
constexpr const char* kStartedFromFile = "started_from.json";

// The tensors that the run does not train, from where the run has them.
class ConstantTensors {
 public:
  // description: CHECKPOINT/model. Throws: std::runtime_error for a file that cannot be read.
  explicit ConstantTensors(const fs::path& description) {
    if (fs::exists(description / kStartedFromFile)) {
      const auto json = engine::JsonObject::read(description / kStartedFromFile);
      started_from_ = json.require(json.text("directory"), "directory");
      has_tower_ = json.boolean("vision").value_or(false);
      has_further_ = json.boolean("further").value_or(false);
      trains_further_ = json.boolean("trains_further").value_or(false);
    }
  }

  bool has_tower() const { return has_tower_; }
  bool trains_further() const { return trains_further_; }
  // The layers that predict further tokens.
  // Throws: std::runtime_error naming the directory when it has none.
  engine::KeptTensors further(const engine::ModelConfig& config, at::ScalarType dtype) const {
    if (!has_further_) {
      return {};
    }
    engine::KeptTensors kept(started_from_, config, dtype);
    if (kept.entries().empty()) {
      throw std::runtime_error(
          "the layers that predict further tokens, which the run did not train, were in " +
          started_from_ + ", where it started, and are not there");
    }
    return kept;
  }
  // Throws: std::runtime_error naming the directory when it has no such tensor.
  at::Tensor read(const std::string& name, const engine::ModelConfig& config) {
    try {
      if (!files_) {
        files_.emplace(started_from_, config);
      }
      return files_->read(name);
    } catch (const std::exception& error) {
      throw std::runtime_error("the vision tower, which the run did not train, is in " +
                               started_from_ + ", where it started: " + error.what());
    }
  }

 private:
  std::string started_from_;
  bool has_tower_ = false, has_further_ = false, trains_further_ = false;
  std::optional<engine::WeightFiles> files_;
};

// Writes the entries, whose values `read` gives, and then what is kept.
void write_tensors(const fs::path& dir, std::vector<engine::SafetensorsEntry> entries,
                   const engine::KeptTensors& kept,
                   const std::function<at::Tensor(const std::string& name)>& read) {
  std::vector<engine::SafetensorsEntry> all = entries;
  std::ranges::copy(kept.entries(), std::back_inserter(all));
  engine::WeightStream stream(dir, std::move(all), engine::SaveOptions().max_shard_bytes);
  for (const engine::SafetensorsEntry& entry : entries) {
    stream.write(read(entry.name));
  }
  kept.write(stream);
  stream.close();
}

}  // namespace

void write_model_description(const fs::path& checkpoint, const engine::HeadedModel& model,
                             const fs::path& tokenizer_from) {
  const engine::Decoder& policy = model.trunk();
  const fs::path dir = checkpoint / kModelFolder;
  fs::create_directories(dir);
  if (!model.has_vocabulary()) {
    engine::save_reward_description(policy.config(), dir, policy.compute_dtype(), tokenizer_from);
    return;
  }
  engine::save_model_description(policy.config(), dir, policy.compute_dtype(), tokenizer_from);
  const bool vision = policy.config().vision.has_value();
  const engine::KeptTensors kept(tokenizer_from, policy.config(), policy.compute_dtype());
  const bool trains_further = policy.config().on_disk.predicts_further;
  if (vision || trains_further || !kept.entries().empty()) {
    const nlohmann::json from{{"directory", fs::absolute(tokenizer_from).string()},
                              {"vision", vision},
                              {"further", !kept.entries().empty()},
                              {"trains_further", trains_further}};
    std::ofstream(dir / kStartedFromFile) << from.dump() << "\n";
  }
}

void export_checkpoint(const fs::path& checkpoint, const fs::path& dir) {
  if (fs::exists(dir) && !(fs::is_directory(dir) && fs::is_empty(dir))) {
    throw std::runtime_error(dir.string() +
                             " exists; expected a directory that does not, or an "
                             "empty one");
  }
  const CheckpointReader reader(checkpoint);
  reader.verify(0, 1);
  ConstantTensors constants(checkpoint / kModelFolder);
  engine::ModelConfig config =
      engine::load_model_config(checkpoint / kModelFolder, {.vision = constants.has_tower()});
  config.on_disk.predicts_further = constants.trains_further();
  const at::ScalarType dtype = engine::stored_dtype(checkpoint / kModelFolder);
  std::vector<engine::ParamSpec> specs = engine::decoder_specs(config);
  if (engine::is_sequence_classifier(checkpoint / kModelFolder)) {
    std::ranges::move(engine::ValueModel::head_specs(config, /*bias=*/false),
                      std::back_inserter(specs));
  }
  if (std::ranges::none_of(specs, [&](const engine::ParamSpec& spec) {
        return reader.tensors().contains(kPolicy + spec.name);
      })) {
    throw std::runtime_error(
        checkpoint.string() +
        " holds adapters alone (lora.rank above 0); expected a checkpoint of "
        "whole weights. A run's checkpoint-final has the merged model, and its "
        "folder adapter the adapters in PEFT's format");
  }
  engine::AtomicDirectory directory(dir);
  for (const auto& entry : fs::directory_iterator(checkpoint / kModelFolder)) {
    if (entry.path().filename() == kStartedFromFile) {
      continue;
    }
    fs::copy_file(entry.path(), directory.path() / entry.path().filename());
  }
  std::vector<engine::SafetensorsEntry> entries;
  for (const engine::ParamSpec& spec : specs) {
    entries.push_back({spec.name, engine::widened_dtype(spec, dtype), spec.shape});
  }
  write_tensors(directory.path(), std::move(entries), constants.further(config, dtype),
                [&](const std::string& name) {
                  const std::string kept = kPolicy + name;
                  return reader.tensors().contains(kept) ? reader.tensor(kept)
                                                         : constants.read(name, config);
                });
  directory.commit();
}

}  // namespace ringside::rl
