#include "engine/io/model_config_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/architectures/architecture.h"
#include "engine/architectures/quantisation_fields.h"
#include "engine/architectures/shared_fields.h"
#include "engine/json/json_object.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

constexpr const char* kText = "text_config";

// A language model's fields, and config.json around them if it is the text part of another model.
struct ModelFields {
  const Architecture* architecture;
  JsonObject own;
  std::optional<JsonObject> around;
};

ModelFields fields_of(const JsonObject& json) {
  const std::string type = json.require(json.text("model_type"), "model_type");
  if (const Architecture* found = find_architecture(type)) {
    return {found, json, std::nullopt};
  }
  const Architecture* found = find_text_part(type);
  if (found == nullptr) {
    json.fail("model_type", "is '" + type + "', expected " + architecture_names());
  }
  const JsonObject text = json.require(json.object(kText), kText);
  const std::string text_type = text.text("model_type").value_or(found->model_type);
  if (text_type != found->model_type) {
    text.fail("model_type", "is '" + text_type + "', expected " + found->model_type);
  }
  return {found, text, json};
}

// What both config.json and its text_config may say.
void read_fields_around(const JsonObject& around, const JsonObject& text, ModelConfig& c) {
  const auto tied = around.boolean("tie_word_embeddings");
  if (tied && !text.has("tie_word_embeddings")) {
    c.tie_word_embeddings = *tied;
  } else if (tied && *tied != c.tie_word_embeddings) {
    around.fail("tie_word_embeddings", "differs from that of text_config");
  }
  if (const auto quantised = around.object("quantization_config")) {
    const std::string problem = quantisation_problem(*quantised, /*mxfp4=*/false);
    if (!problem.empty()) {
      around.fail("quantization_config", problem);
    }
  }
  c.on_disk.multimodal_json = around.json().dump();
  for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    around.has(id);  // text_config's count
  }
  if (c.eos_token_ids.empty()) {
    c.eos_token_ids = around.integers("eos_token_id");
  }
  refuse_unknown_multimodal_fields(around);
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

// The config.json of a multimodal model with these fields of its text part. Fields of it that are
// not ours stay as they are.
nlohmann::ordered_json with_text_part(nlohmann::ordered_json all, nlohmann::ordered_json text) {
  all["dtype"] = all["torch_dtype"] = text["dtype"];
  all["tie_word_embeddings"] = text["tie_word_embeddings"];
  text.erase("architectures");
  all.erase("quantization_config");  // weights are saved as numbers
  all[kText].erase("quantization_config");
  all[kText].merge_patch(text);
  return all;
}

nlohmann::ordered_json id_json(const std::optional<int64_t>& id) {
  return id ? nlohmann::ordered_json(*id) : nlohmann::ordered_json(nullptr);
}

// Models that cannot be read, where config.json alone does not tell or is not there.
void refuse_other_formats(const fs::path& path) {
  if (const std::string problem = gguf_problem(path); !problem.empty()) {
    throw std::runtime_error(problem);
  }
  const fs::path modelopt = path / "hf_quant_config.json";
  if (fs::exists(modelopt)) {
    throw std::runtime_error(modelopt.string() +
                             " says that ModelOpt quantised the weights, which are not read; train "
                             "the unquantised model that they were made from");
  }
}

}  // namespace

std::string gguf_problem(const fs::path& path) {
  fs::path found = path.extension() == ".gguf" ? path : fs::path();
  if (fs::is_directory(path) && !fs::exists(path / "config.json")) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      found = entry.path().extension() == ".gguf" ? entry.path() : found;
    }
  }
  return found.empty() ? ""
                       : found.string() +
                             " is a GGUF file, expected a Hugging Face directory; convert it with "
                             "recipes/from_gguf.py FILE.gguf DIRECTORY";
}

ModelConfig load_model_config(const fs::path& dir_or_file) {
  refuse_other_formats(dir_or_file);
  const fs::path file = fs::is_directory(dir_or_file) ? dir_or_file / "config.json" : dir_or_file;
  const ModelFields fields = fields_of(JsonObject::read(file));
  ModelConfig config = fields.architecture->read(fields.own);
  config.model_type = fields.architecture->model_type;
  read_special_ids(fields.own, file.parent_path() / "generation_config.json", config);
  refuse_unknown_fields(fields.own);
  if (fields.around) {
    read_fields_around(*fields.around, fields.own, config);
  }
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
  if (!config.on_disk.multimodal_json.empty()) {
    json = with_text_part(nlohmann::ordered_json::parse(config.on_disk.multimodal_json), json);
  }
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
