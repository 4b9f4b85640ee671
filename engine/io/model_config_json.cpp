#include "engine/io/model_config_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"
#include "engine/json/json_object.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

const Architecture& architecture_of(const JsonObject& json) {
  const std::string type = json.require(json.text("model_type"), "model_type");
  if (const Architecture* found = find_architecture(type)) {
    return *found;
  }
  json.fail("model_type", "is '" + type + "', expected " + architecture_names());
}

void read_special_ids(const JsonObject& json, const fs::path& generation_file, ModelConfig& c) {
  c.bos_token_id = json.integer("bos_token_id");
  c.pad_token_id = json.integer("pad_token_id");
  c.eos_token_ids = json.integers("eos_token_id");
  if (fs::exists(generation_file)) {
    auto ids = JsonObject::read(generation_file).integers("eos_token_id");
    if (!ids.empty()) {
      c.eos_token_ids = std::move(ids);
    }
  }
  for (const int64_t id : c.eos_token_ids) {
    if (id < 0 || id >= c.vocab_size) {
      json.fail("eos_token_id",
                "is " + std::to_string(id) + ", expected 0 to " + std::to_string(c.vocab_size - 1));
    }
  }
}

nlohmann::ordered_json eos_json(const ModelConfig& config) {
  if (config.eos_token_ids.empty()) {
    return nullptr;
  }
  if (config.eos_token_ids.size() == 1) {
    return config.eos_token_ids.front();
  }
  return config.eos_token_ids;
}

nlohmann::ordered_json id_json(const std::optional<int64_t>& id) {
  return id ? nlohmann::ordered_json(*id) : nlohmann::ordered_json(nullptr);
}

}  // namespace

ModelConfig load_model_config(const fs::path& dir_or_file) {
  const fs::path file = fs::is_directory(dir_or_file) ? dir_or_file / "config.json" : dir_or_file;
  const JsonObject json = JsonObject::read(file);
  const Architecture& architecture = architecture_of(json);
  ModelConfig config = architecture.read(json);
  config.model_type = architecture.model_type;
  read_special_ids(json, file.parent_path() / "generation_config.json", config);
  refuse_unknown_fields(json);
  return config;
}

std::string model_config_json(const ModelConfig& config, const std::string& dtype) {
  const Architecture* architecture = find_architecture(config.model_type);
  if (architecture == nullptr) {
    throw std::invalid_argument("model_type '" + config.model_type + "', expected " +
                                architecture_names());
  }
  nlohmann::ordered_json json = {{"architectures", {architecture->class_name}},
                                 {"model_type", config.model_type},
                                 {"dtype", dtype},
                                 {"torch_dtype", dtype}};
  write_shared_fields(config, json);
  json["bos_token_id"] = id_json(config.bos_token_id);
  json["eos_token_id"] = eos_json(config);
  json["pad_token_id"] = id_json(config.pad_token_id);
  json["attention_dropout"] = 0.0;
  json["use_cache"] = true;
  architecture->write(config, json);
  return json.dump(2) + "\n";
}

std::string generation_config_json(const ModelConfig& config) {
  const nlohmann::ordered_json json = {{"_from_model_config", true},
                                       {"bos_token_id", id_json(config.bos_token_id)},
                                       {"eos_token_id", eos_json(config)},
                                       {"pad_token_id", id_json(config.pad_token_id)}};
  return json.dump(2) + "\n";
}

}  // namespace ringside::engine
