#include "engine/io/adapter_directory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/disk_file.h"
#include "engine/io/safetensors.h"
#include "engine/io/weight_files.h"
#include "engine/json/json_object.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightFile = "adapter_model.safetensors";

// Fields with a meaning here, and fields without effect on what the adapters compute. Every other
// field must be null, false, zero or empty.
constexpr std::array kUnderstoodFields = {
    "peft_type",
    "r",
    "lora_alpha",
    "target_modules",
    "target_parameters",
    "bias",
    "init_lora_weights",
    "task_type",
    "auto_mapping",
    "exclude_modules",
    "base_model_name_or_path",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "revision",
    "qalora_group_size",
};

bool is_default(const nlohmann::json& value) {
  return value.is_null() || (value.is_structured() && value.empty()) || value == "" ||
         value == false || value == 0;
}

void require_text(const JsonObject& config, const char* key, const std::string& expected) {
  const std::string value = config.require(config.text(key), key);
  if (value != expected) {
    config.fail(key, "is '" + value + "', expected '" + expected + "'");
  }
}

void check_fields(const JsonObject& config) {
  require_text(config, "peft_type", "LORA");
  if (config.has("bias")) {
    require_text(config, "bias", "none");
  }
  for (const auto& [key, value] : config.json().items()) {
    const bool understood = std::find(kUnderstoodFields.begin(), kUnderstoodFields.end(), key) !=
                            kUnderstoodFields.end();
    if (!understood && !is_default(value)) {
      config.fail(key, "is " + value.dump() +
                           ", which is not supported; expected its default (null, false or empty)");
    }
  }
  // Other initialisations change the base weights too.
  if (config.has("init_lora_weights")) {
    const nlohmann::json& init = config.json().at("init_lora_weights");
    if (!init.is_boolean() && init != "gaussian") {
      config.fail("init_lora_weights", "is " + init.dump() +
                                           ", which changes the base weights and is not "
                                           "supported; expected true, false or 'gaussian'");
    }
  }
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

bool is_factor_of(std::string_view tensor, const std::string& module) {
  return tensor.ends_with("." + module + ".lora_A.weight") ||
         tensor.ends_with("." + module + ".lora_B.weight");
}

// The projections of experts that the directory adapts, by the names of known_adapter_targets(), in
// that order.
std::vector<std::string> experts_targets(const JsonObject& config) {
  if (!config.has("target_parameters") || config.json().at("target_parameters").is_null()) {
    return {};
  }
  const std::vector<std::string> known{"experts.gate_up_proj", "experts.down_proj"};
  const nlohmann::json& stored = config.json().at("target_parameters");
  std::set<std::string> named;
  for (const nlohmann::json& one : stored) {
    const std::string name = one.is_string() ? "." + one.get<std::string>() : "";
    // PEFT adapts the parameters whose names end so.
    const auto found = std::ranges::find_if(known, [&](const std::string& parameter) {
      return name.size() > 1 &&
             (name.ends_with("." + parameter) || ("." + parameter).ends_with(name));
    });
    if (!stored.is_array() || found == known.end()) {
      config.fail("target_parameters", "is " + stored.dump() +
                                           ", which is not supported; expected names out of " +
                                           joined(known));
    }
    named.insert(*found);
  }
  std::vector<std::string> targets;
  std::ranges::copy_if(known, std::back_inserter(targets),
                       [&](const std::string& name) { return named.contains(name); });
  return targets;
}

// The projection of a factor "....q_proj.lora_A.weight"; "" for another tensor. of_experts: the
// projections of experts that have factors. Those of the first are PEFT's base layer of the second.
std::string projection_of(std::string_view tensor, const std::vector<std::string>& of_experts) {
  if (is_factor_of(tensor, "experts.base_layer")) {
    return of_experts.size() > 1 ? of_experts.front() : "";
  }
  if (is_factor_of(tensor, "experts")) {
    return of_experts.empty() ? "" : of_experts.back();
  }
  for (const std::string& name : known_adapter_targets()) {
    if (is_factor_of(tensor, name)) {
      return name;
    }
  }
  return "";
}

WeightFiles open_weights(const fs::path& dir) {
  if (!fs::exists(dir / kWeightFile)) {
    const bool old = fs::exists(dir / "adapter_model.bin");
    throw std::runtime_error(dir.string() + ": " + kWeightFile + " is not there" +
                             (old ? ", only adapter_model.bin; save it with PEFT's "
                                    "save_pretrained(safe_serialization=True)"
                                  : ""));
  }
  return WeightFiles::of_file(dir / kWeightFile);
}

AdapterOptions read_options(const fs::path& dir, const WeightFiles& files) {
  const JsonObject config = JsonObject::read(dir / kConfigFile);
  check_fields(config);
  AdapterOptions options;
  options.rank = config.require_at_least(1, "r");
  options.alpha = config.require(config.number("lora_alpha"), "lora_alpha");
  if (!(options.alpha > 0)) {
    config.fail("lora_alpha", "is " + std::to_string(options.alpha) + ", expected above 0");
  }
  const std::vector<std::string> of_experts = experts_targets(config);
  std::set<std::string> named;
  for (const std::string& tensor : files.names()) {
    const std::string name = projection_of(tensor, of_experts);
    if (name.empty()) {
      throw std::runtime_error(
          files.describe(tensor) +
          " is no factor of an adapted projection; expected lora_A and lora_B of " +
          joined(known_adapter_targets()));
    }
    named.insert(name);
  }
  if (named.empty()) {
    throw std::runtime_error((dir / kWeightFile).string() + ": holds no tensor");
  }
  for (const std::string& name : of_experts) {
    if (!named.contains(name)) {
      config.fail("target_parameters",
                  "names " + name + ", of which " + kWeightFile + " has no factor");
    }
  }
  for (const std::string& name : known_adapter_targets()) {
    if (named.contains(name)) {
      options.targets.push_back(name);
    }
  }
  return options;
}

}  // namespace

AdapterOptions read_adapter_options(const fs::path& dir) {
  return read_options(dir, open_weights(dir));
}

void load_adapters(const fs::path& dir, Adapters& adapters) {
  const at::NoGradGuard no_grad;
  WeightFiles files = open_weights(dir);
  const AdapterOptions stored = read_options(dir, files);
  if (!(stored == adapters.options())) {
    throw std::runtime_error(dir.string() + ": holds adapters of " + describe(stored) +
                             "; the configuration asks for " + describe(adapters.options()));
  }
  const ParamUnit& unit = adapters.unit();
  for (std::size_t i = 0; i < unit.specs().size(); ++i) {
    files.fill(unit.storage(), i, unit.specs()[i].name);
  }
  std::set<std::string> of_other_stages;
  for (const ParamSpec& spec : Adapters::factors(adapters.config(), adapters.options())) {
    of_other_stages.insert(spec.name);
  }
  for (const std::string& name : files.names()) {
    if (!of_other_stages.contains(name)) {
      throw std::runtime_error(files.describe(name) + " belongs to no adapter of the model");
    }
  }
}

std::string adapter_config_json(const AdapterOptions& options, const std::string& base_model) {
  std::vector<std::string> modules, parameters;
  for (const std::string& target : options.targets) {
    (target.starts_with("experts.") ? parameters : modules).push_back(target);
  }
  nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                 {"task_type", "CAUSAL_LM"},
                                 {"base_model_name_or_path", base_model},
                                 {"r", options.rank},
                                 {"lora_alpha", options.alpha},
                                 {"target_modules", modules},
                                 {"lora_dropout", 0.0},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false},
                                 {"inference_mode", true},
                                 {"use_dora", false},
                                 {"use_rslora", false},
                                 {"rank_pattern", nlohmann::json::object()},
                                 {"alpha_pattern", nlohmann::json::object()},
                                 {"modules_to_save", nullptr}};
  if (!parameters.empty()) {
    json["target_parameters"] = parameters;
  }
  if (options.alpha == std::floor(options.alpha)) {
    json["lora_alpha"] = static_cast<int64_t>(options.alpha);  // servers expect an integer
  }
  return json.dump(2) + "\n";
}

void save_adapters(const Adapters& adapters, const fs::path& dir, const std::string& base_model) {
  write_text(dir / kConfigFile, adapter_config_json(adapters.options(), base_model));
  const ParamUnit& unit = adapters.unit();
  std::vector<TensorToWrite> tensors;
  for (std::size_t i = 0; i < unit.specs().size(); ++i) {
    tensors.push_back({unit.specs()[i].name, unit.view(i), unit.flat().scalar_type()});
  }
  write_safetensors(dir / kWeightFile, std::move(tensors));
}

std::string describe(const AdapterOptions& options) {
  return "rank " + std::to_string(options.rank) + ", alpha " +
         nlohmann::json(options.alpha).dump() + ", projections " + joined(options.targets);
}

}  // namespace ringside::engine
