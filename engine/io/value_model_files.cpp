#include "engine/io/value_model_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/disk_file.h"
#include "engine/io/hf_directory.h"
#include "engine/io/model_config_json.h"
#include "engine/io/weight_file_sink.h"
#include "engine/io/weight_files.h"
#include "engine/json/json_object.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

// Prefixes of a head's weight and bias in a directory; the first is what ValueModel names its own.
constexpr std::array<const char*, 3> kHeads = {"score", "v_head.summary", "value_head"};

// Stages on other ranks read the rest of the model.
void refuse_the_rest(const WeightFiles& files, const ValueModel& model) {
  const ModelConfig& config = model.trunk().config();
  std::set<std::string> others;
  if (model.trunk().context().pipeline != nullptr) {
    for (const ParamSpec& spec : decoder_specs(config)) {
      others.insert(spec.name);
    }
    for (const std::string prefix : kHeads) {
      others.insert({prefix + ".weight", prefix + ".bias"});
    }
  }
  for (const std::string& name : files.names()) {
    if (name != config.on_disk.head && !is_passed_over(config, name) && !others.contains(name)) {
      throw std::runtime_error(files.describe(name) +
                               " belongs to no parameter of the value model");
    }
  }
}

void load_head(WeightFiles& files, const ParamUnit& head) {
  head.flat().detach().zero_();
  for (const std::string prefix : kHeads) {
    if (!files.contains(prefix + ".weight")) {
      continue;
    }
    files.fill(head.storage(), 0, prefix + ".weight");
    if (head.specs().size() > 1 && files.contains(prefix + ".bias")) {
      files.fill(head.storage(), 1, prefix + ".bias");
    }
    return;  // a second head is left over and refused
  }
}

constexpr const char* kSequenceClassifier = "ForSequenceClassification";

// The trunk's config.json, made a classifier's of tokens or, without a bias of the head, of
// sequences: without dropout and layers that predict further tokens, with the one label that is the
// value.
std::string value_config_json(ModelConfig trunk, bool fp64, bool head_bias) {
  trunk.on_disk.further = {};
  auto json = nlohmann::ordered_json::parse(model_config_json(trunk, fp64 ? "float64" : "float32"));
  const std::string name = json.at("architectures").at(0);
  TORCH_CHECK(name.ends_with("ForCausalLM") || name.ends_with("ForConditionalGeneration"),
              "config.json names the class ", name);
  json["architectures"] = {name.substr(0, name.rfind("For")) +
                           (head_bias ? "ForTokenClassification" : kSequenceClassifier)};
  const std::string label = head_bias ? "VALUE" : "REWARD";
  json["id2label"] = {{"0", label}};
  json["label2id"] = {{label, 0}};
  json["classifier_dropout"] = 0.0;
  return json.dump(2) + "\n";
}

}  // namespace

void load_value_weights(const fs::path& dir, ValueModel& model) {
  const at::NoGradGuard no_grad;
  WeightFiles files(dir, model.trunk().config());
  for (const Decoder* stage : std::as_const(model).stages()) {
    for (const ParamUnit* unit : stage->units()) {
      for (std::size_t i = 0; i < unit->specs().size(); ++i) {
        files.fill(unit->storage(), i, unit->specs()[i].name);
      }
      unit->changed();
    }
  }
  if (model.scores()) {
    load_head(files, model.head());
    model.head().changed();
  }
  refuse_the_rest(files, model);
}

std::vector<std::string> check_reward_headers(const fs::path& dir, const ModelConfig& config) {
  const WeightFiles files(dir, config);
  ModelConfig trunk = config;
  trunk.tie_word_embeddings = true;  // as ValueModel, which has no head of the vocabulary
  std::vector<ParamSpec> specs = decoder_specs(trunk);
  for (const std::string prefix : kHeads) {
    if (files.contains(prefix + ".weight")) {
      specs.push_back({prefix + ".weight", {1, config.hidden_size}});
      break;
    }
  }
  std::vector<std::string> problems = files.header_problems(specs);
  std::set<std::string> expected{config.on_disk.head};
  for (const ParamSpec& spec : specs) {
    expected.insert(spec.name);
  }
  for (const std::string& name : files.names()) {
    if (!expected.contains(name) && !is_passed_over(config, name)) {
      problems.push_back(files.describe(name) + " belongs to no parameter of the reward model");
    }
  }
  return problems;
}

WeightSink value_model_files(const fs::path& dir, int64_t max_shard_bytes) {
  return [=](UnitExport& units) {
    const ComputeContext& context = units.weights().context();
    const std::vector<ParamSpec> specs = units.weights().specs();
    const bool head_bias =
        std::ranges::any_of(specs, [](const ParamSpec& spec) { return spec.name == "score.bias"; });
    write_text(dir / "config.json", value_config_json(units.weights().config(),
                                                      context.compute == at::kDouble, head_bias));
    write_weight_files(units, dir, context.master, max_shard_bytes);
  };
}

void save_reward_description(const ModelConfig& trunk, const fs::path& dir,
                             at::ScalarType compute_dtype, const fs::path& copy_from) {
  save_model_description(trunk, dir, compute_dtype, copy_from);
  write_text(dir / "config.json",
             value_config_json(trunk, compute_dtype == at::kDouble, /*head_bias=*/false));
}

bool is_sequence_classifier(const fs::path& dir) {
  const std::vector<std::string> names =
      JsonObject::read(dir / "config.json").texts("architectures");
  return !names.empty() && names.front().ends_with(kSequenceClassifier);
}

}  // namespace ringside::engine
