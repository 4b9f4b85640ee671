#include "engine/io/value_model_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/disk_file.h"
#include "engine/io/model_config_json.h"
#include "engine/io/safetensors.h"
#include "engine/io/weight_files.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

// Prefixes of a head's weight and bias in a directory; the first is what ValueModel names its own.
constexpr std::array<const char*, 3> kHeads = {"score", "v_head.summary", "value_head"};

void refuse_the_rest(const WeightFiles& files) {
  for (const std::string& name : files.names()) {
    if (name != "lm_head.weight" && !std::string_view(name).ends_with("rotary_emb.inv_freq")) {
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
    files.fill(head, 0, prefix + ".weight");
    if (files.contains(prefix + ".bias")) {
      files.fill(head, 1, prefix + ".bias");
    }
    return;  // a second head is left over and refused
  }
}

// The trunk's config.json, made a token classifier's: without dropout, with the one label that is
// the value.
std::string value_config_json(const Decoder& trunk) {
  const bool fp64 = trunk.compute_dtype() == at::kDouble;
  auto json = nlohmann::ordered_json::parse(
      model_config_json(trunk.config(), fp64 ? "float64" : "float32"));
  std::string name = json.at("architectures").at(0);
  constexpr std::string_view kLanguageModel = "ForCausalLM";
  TORCH_CHECK(name.ends_with(kLanguageModel), "config.json names the class ", name);
  name.replace(name.size() - kLanguageModel.size(), kLanguageModel.size(),
               "ForTokenClassification");
  json["architectures"] = {name};
  json["id2label"] = {{"0", "VALUE"}};
  json["label2id"] = {{"VALUE", 0}};
  json["classifier_dropout"] = 0.0;
  return json.dump(2) + "\n";
}

}  // namespace

void load_value_weights(const fs::path& dir, ValueModel& model) {
  const at::NoGradGuard no_grad;
  WeightFiles files(dir);
  for (const ParamUnit* unit : model.trunk().units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      files.fill(*unit, i, unit->specs()[i].name);
    }
    unit->changed();
  }
  load_head(files, model.head());
  model.head().changed();
  refuse_the_rest(files);
}

void save_value_model(const ValueModel& model, const fs::path& dir) {
  write_text(dir / "config.json", value_config_json(model.trunk()));
  std::vector<TensorToWrite> tensors;
  for (const ParamUnit* unit : model.units()) {
    const at::Tensor flat = unit->gather_flat();
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      tensors.push_back({unit->specs()[i].name, unit->view_of(flat, i), flat.scalar_type()});
    }
  }
  fs::remove(dir / kWeightIndexFile);  // of an older, sharded model: the single file is what loads,
                                       // but both would mislead
  write_safetensors(dir / kSingleWeightFile, std::move(tensors));
}

}  // namespace ringside::engine
