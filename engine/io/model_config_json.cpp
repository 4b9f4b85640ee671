#include "engine/io/model_config_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/architectures/architecture.h"
#include "engine/architectures/multimodal.h"
#include "engine/architectures/shared_fields.h"
#include "engine/architectures/unread_fields.h"
#include "engine/architectures/vision_fields.h"
#include "engine/json/json_object.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

constexpr const char* kText = "text_config";

// A language model's fields, and config.json around them if it is the text part of another model.
struct ModelFields {
  const Architecture* architecture;
  JsonObject own;
  std::optional<JsonObject> around = {};
  const MultimodalType* multimodal = nullptr;
};

ModelFields fields_of(const JsonObject& json) {
  const std::string type = json.require(json.text("model_type"), "model_type");
  if (const Architecture* found = find_architecture(type)) {
    return {found, json};
  }
  const MultimodalType* multimodal = find_multimodal_type(type);
  if (multimodal == nullptr) {
    json.fail("model_type", "is '" + type + "', expected " + architecture_names());
  }
  const Architecture* architecture = find_architecture(multimodal->architecture);
  if (multimodal->may_be_flat && !json.has(kText)) {
    pass_over_other_modalities(json);
    return {architecture, json, std::nullopt, multimodal};
  }
  const JsonObject text = json.require(json.object(kText), kText);
  const std::string text_type = text.text("model_type").value_or(multimodal->text_type);
  if (text_type != multimodal->text_type && text_type != multimodal->architecture) {
    text.fail("model_type", "is '" + text_type + "', expected " + multimodal->text_type);
  }
  return {architecture, text, json, multimodal};
}

// What both config.json and its text_config may say.
void read_fields_around(const JsonObject& around, const JsonObject& text, ModelConfig& c) {
  const auto tied = around.boolean("tie_word_embeddings");
  if (tied && !text.has("tie_word_embeddings")) {
    c.tie_word_embeddings = *tied;
  } else if (tied && *tied != c.tie_word_embeddings) {
    around.refuse("tie_word_embeddings", "differs from that of text_config");
  }
  // text_config's count.
  c.bos_token_id = c.bos_token_id ? c.bos_token_id : around.integer("bos_token_id");
  c.pad_token_id = c.pad_token_id ? c.pad_token_id : around.integer("pad_token_id");
  if (const auto ids = around.integers("eos_token_id"); c.eos_token_ids.empty()) {
    c.eos_token_ids = ids;
  }
  refuse_unread_quantisation(around, /*mxfp4=*/false);
  judge_unread_fields_around(around, text);
}

// ModelOpt writes the weights' format into a file of its own. Other files leave config.json alone.
void refuse_modelopt(const fs::path& file, const JsonObject& config) {
  if (!fs::exists(file)) {
    return;
  }
  const auto quantised = JsonObject::read(file).object("quantization");
  const auto format =
      quantised ? quantised->text("quant_algo") : std::optional<std::string>("unknown");
  if (format) {
    config.refuse("quantization_config",
                  "is missing, but " + file.filename().string() +
                      " beside it says that ModelOpt quantised the weights (quant_algo " + *format +
                      "), which are not read; train the unquantised model that they were made "
                      "from");
  }
}

void read_special_ids(const JsonObject& json, ModelConfig& c) {
  c.bos_token_id = json.integer("bos_token_id");
  c.pad_token_id = json.integer("pad_token_id");
  c.eos_token_ids = json.integers("eos_token_id");
}

void read_generation_ids(const JsonObject& json, const fs::path& generation_file, ModelConfig& c) {
  if (fs::exists(generation_file)) {
    auto ids = JsonObject::read(generation_file).integers("eos_token_id");
    if (!ids.empty()) {
      c.eos_token_ids = std::move(ids);
    }
  }
  for (const int64_t id : c.eos_token_ids) {
    if (id < 0 || id >= c.vocab_size) {
      json.refuse("eos_token_id", "is " + std::to_string(id) + ", expected 0 to " +
                                      std::to_string(c.vocab_size - 1));
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

// Keeps the fields of RoPE that only images and videos have.
void keep_mrope(const nlohmann::ordered_json& before, nlohmann::ordered_json& text) {
  for (const char* block : {"rope_parameters", "rope_scaling"}) {
    for (const char* key : {"mrope_section", "mrope_interleaved"}) {
      if (before.contains(block) && before[block].is_object() && before[block].contains(key)) {
        text["rope_parameters"][key] = before[block][key];
      }
    }
  }
  if (text["rope_parameters"].contains("mrope_section") && text["rope_scaling"].is_null()) {
    text["rope_scaling"] = text["rope_parameters"];
    text["rope_scaling"].erase("rope_theta");
  }
}

// Some files say the text's fields again around text_config: they stay equal. before: text_config
// as it was.
void repeat_around(const nlohmann::ordered_json& before, nlohmann::ordered_json& all) {
  for (const auto& [key, value] : before.items()) {
    if (!all.contains(key) || all[key] != value) {
      continue;
    }
    if (all[kText].contains(key)) {
      all[key] = all[kText][key];
    } else {
      all.erase(key);
    }
  }
}

// The config.json of a multimodal model with these fields of its text part. Fields of it that are
// not ours stay as they are.
nlohmann::ordered_json with_text_part(nlohmann::ordered_json all, nlohmann::ordered_json text) {
  all["dtype"] = all["torch_dtype"] = text["dtype"];
  all["tie_word_embeddings"] = text["tie_word_embeddings"];
  text.erase("architectures");
  const bool is_flat = !all.contains(kText);
  if (is_flat || all[kText].contains("model_type")) {
    text.erase("model_type");
  }
  all.erase("quantization_config");  // weights are saved as numbers
  nlohmann::ordered_json& target = is_flat ? all : all[kText];
  target.erase("quantization_config");
  const nlohmann::ordered_json before = target;
  keep_mrope(before, text);
  target.merge_patch(text);
  if (!is_flat) {
    repeat_around(before, all);
  }
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

ModelConfig load_model_config(const fs::path& dir_or_file, const ReadOptions& options) {
  refuse_other_formats(dir_or_file);
  const fs::path file = fs::is_directory(dir_or_file) ? dir_or_file / "config.json" : dir_or_file;
  const JsonObject json = JsonObject::read(file);
  const ModelFields fields = fields_of(json);
  ModelConfig config = fields.architecture->read(fields.own);
  config.model_type = fields.architecture->model_type;
  if (options.vision && (fields.multimodal == nullptr || !fields.multimodal->tower)) {
    json.fail("model_type", "has no vision tower that is read");
  }
  if (fields.multimodal != nullptr) {
    put_in_place(*fields.multimodal, json.json().dump(), options.vision, config.on_disk);
    config.experts.normalise_weights |= fields.multimodal->normalises_weights;
  }
  if (options.vision) {
    config.vision = read_vision_fields(json, fields.own, *fields.multimodal, config);
  }
  read_special_ids(fields.own, config);
  judge_unread_fields(fields.own);
  if (fields.around) {
    read_fields_around(*fields.around, fields.own, config);
  }
  read_generation_ids(json, file.parent_path() / "generation_config.json", config);
  refuse_modelopt(file.parent_path() / "hf_quant_config.json", json);
  json.throw_refusals();
  config.on_disk.fields_passed_over = json.passed_over();
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
  for (const auto& [key, value] : config.on_disk.further.fields) {
    json[key] = nlohmann::ordered_json::parse(value);
  }
  if (!config.on_disk.multimodal_json.empty()) {
    json = with_text_part(nlohmann::ordered_json::parse(config.on_disk.multimodal_json), json);
  }
  if (config.vision) {
    if (config.on_disk.multimodal_json.empty()) {
      throw std::invalid_argument(
          "a model with a vision tower is written with the config.json that it was read from");
    }
    write_vision_fields(config, dtype, json);
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
