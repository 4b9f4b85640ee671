#include "engine/io/kept_tensors.h"

#include <set>
#include <string>
#include <utility>

#include "engine/models/decoder_units.h"

namespace ringside::engine {

KeptTensors::KeptTensors(const std::filesystem::path& dir, const ModelConfig& config,
                         at::ScalarType storage) {
  if (config.on_disk.further.layers == 0 || dir.empty() || !has_weight_files(dir)) {
    return;
  }
  files_.emplace(dir, config);
  std::set<std::string> trained;
  for (const ParamSpec& spec : decoder_specs(config)) {
    trained.insert(spec.name);
  }
  for (const std::string& name : files_->names()) {
    if (predicts_further(config, name) && !trained.contains(name)) {
      entries_.push_back(files_->header(name, storage));
    }
  }
}

void KeptTensors::write(WeightStream& stream) const {
  for (const SafetensorsEntry& entry : entries_) {
    stream.write(files_->read(entry.name));
  }
}

ModelConfig KeptTensors::described(ModelConfig config) const {
  if (entries_.empty() && !config.on_disk.predicts_further) {
    config.on_disk.further.fields.clear();
  }
  return config;
}

}  // namespace ringside::engine
