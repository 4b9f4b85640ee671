#include "rl/checkpoint/export.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>

#include "engine/io/atomic_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/io/weight_stream.h"
#include "engine/json/json_object.h"
#include "rl/checkpoint/checkpoint_reader.h"

namespace ringside::rl {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModelFolder = "model";
constexpr const char* kPolicy = "policy/";

}  // namespace

void write_model_description(const fs::path& checkpoint, const engine::Decoder& policy,
                             const fs::path& tokenizer_from) {
  const fs::path dir = checkpoint / kModelFolder;
  fs::create_directories(dir);
  engine::save_model_description(policy.config(), dir, policy.compute_dtype(), tokenizer_from);
}

void export_checkpoint(const fs::path& checkpoint, const fs::path& dir) {
  if (fs::exists(dir) && !(fs::is_directory(dir) && fs::is_empty(dir))) {
    throw std::runtime_error(dir.string() +
                             " exists; expected a directory that does not, or an "
                             "empty one");
  }
  const CheckpointReader reader(checkpoint);
  reader.verify(0, 1);
  const engine::ModelConfig config = engine::load_model_config(checkpoint / kModelFolder);
  const at::ScalarType dtype = engine::stored_dtype(checkpoint / kModelFolder);
  if (!reader.tensors().contains(kPolicy + engine::decoder_specs(config).front().name)) {
    throw std::runtime_error(
        checkpoint.string() +
        " holds adapters alone (lora.rank above 0); expected a checkpoint of "
        "whole weights. A run's checkpoint-final has the merged model, and its "
        "folder adapter the adapters in PEFT's format");
  }
  engine::AtomicDirectory directory(dir);
  for (const auto& entry : fs::directory_iterator(checkpoint / kModelFolder)) {
    fs::copy_file(entry.path(), directory.path() / entry.path().filename());
  }
  std::vector<engine::SafetensorsEntry> entries;
  for (const engine::ParamSpec& spec : engine::decoder_specs(config)) {
    entries.push_back({spec.name, engine::widened_dtype(spec, dtype), spec.shape});
  }
  engine::WeightStream stream(directory.path(), entries, engine::SaveOptions().max_shard_bytes);
  for (const engine::SafetensorsEntry& entry : entries) {
    stream.write(reader.tensor(kPolicy + entry.name));
  }
  stream.close();
  directory.commit();
}

}  // namespace ringside::rl
