#include "rl/checkpoint/export.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/io/atomic_directory.h"
#include "engine/io/hf_directory.h"
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
// Of a model with a vision tower: {"started_from": the directory that has its constant tensors}.
constexpr const char* kVisionFile = "vision.json";

// The tensors of a vision tower that the run does not train, from where the run has them.
class ConstantTensors {
 public:
  // description: CHECKPOINT/model. Throws: std::runtime_error for a file that cannot be read.
  explicit ConstantTensors(const fs::path& description) {
    if (fs::exists(description / kVisionFile)) {
      started_from_ =
          engine::JsonObject::read(description / kVisionFile).text("started_from").value_or("");
    }
  }

  bool has_tower() const { return !started_from_.empty(); }
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
  std::optional<engine::WeightFiles> files_;
};

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
  if (policy.config().vision) {
    const nlohmann::json from{{"started_from", fs::absolute(tokenizer_from).string()}};
    std::ofstream(dir / kVisionFile) << from.dump() << "\n";
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
  const engine::ModelConfig config =
      engine::load_model_config(checkpoint / kModelFolder, {.vision = constants.has_tower()});
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
    if (entry.path().filename() == kVisionFile) {
      continue;
    }
    fs::copy_file(entry.path(), directory.path() / entry.path().filename());
  }
  std::vector<engine::SafetensorsEntry> entries;
  for (const engine::ParamSpec& spec : specs) {
    entries.push_back({spec.name, engine::widened_dtype(spec, dtype), spec.shape});
  }
  engine::WeightStream stream(directory.path(), entries, engine::SaveOptions().max_shard_bytes);
  for (const engine::SafetensorsEntry& entry : entries) {
    const std::string kept = kPolicy + entry.name;
    stream.write(reader.tensors().contains(kept) ? reader.tensor(kept)
                                                 : constants.read(entry.name, config));
  }
  stream.close();
  directory.commit();
}

}  // namespace ringside::rl
