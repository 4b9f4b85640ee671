#include "engine/io/value_model_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/disk_file.h"
#include "engine/io/json_object.h"
#include "engine/io/model_config_json.h"
#include "engine/io/safetensors.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Prefixes of a head's weight and bias in a directory; the first is what ValueModel names its own.
constexpr std::array<const char*, 3> kHeads = {"score", "v_head.summary", "value_head"};

std::vector<fs::path> weight_files(const fs::path& dir) {
  if (fs::exists(dir / kSingleFile)) {
    return {dir / kSingleFile};
  }
  const JsonObject index = JsonObject::read(dir / kIndexFile);
  const JsonObject map = index.require(index.object("weight_map"), "weight_map");
  std::set<fs::path> files;
  for (const auto& [name, value] : map.json().items()) {
    const std::string file = map.require(map.text(name), name);
    if (fs::path(file).filename() != file) {
      map.fail(name, "is '" + file + "', expected a file beside the index");
    }
    files.insert(dir / file);
  }
  return {files.begin(), files.end()};
}

// A directory's tensors that no parameter has taken yet. Each views its mapped file.
class StoredTensors {
 public:
  explicit StoredTensors(const fs::path& dir) : dir_(dir) {
    for (const fs::path& path : weight_files(dir)) {
      const SafetensorsFile file(path);
      for (std::size_t i = 0; i < file.entries().size(); ++i) {
        const std::string& name = file.entries()[i].name;
        if (!tensors_.emplace(name, file.tensor(i)).second) {
          throw std::runtime_error(path.string() + ": tensor '" + name +
                                   "' is in another file too");
        }
      }
    }
  }

  bool contains(const std::string& name) const { return tensors_.contains(name); }

  void take(const std::string& name, const at::Tensor& parameter) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      fail(name, "is in none of the weight files");
    }
    const at::Tensor& stored = found->second;
    if (stored.sizes() != parameter.sizes()) {
      fail(name, c10::str("has shape ", stored.sizes(), ", the value model asks for ",
                          parameter.sizes()));
    }
    if (!stored.is_floating_point()) {
      fail(name, c10::str("has dtype ", stored.scalar_type(), ", expected a floating-point one"));
    }
    parameter.copy_(stored);
    if (!at::isfinite(parameter).all().item<bool>()) {
      fail(name, "holds values that are not finite (NaN or infinite); these weights are broken");
    }
    tensors_.erase(found);
  }

  void refuse_the_rest() const {
    for (const auto& [name, tensor] : tensors_) {
      if (name != "lm_head.weight" && !std::string_view(name).ends_with("rotary_emb.inv_freq")) {
        fail(name, "belongs to no parameter of the value model");
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& problem) const {
    throw std::runtime_error(dir_.string() + ": tensor '" + name + "' " + problem);
  }

  fs::path dir_;
  std::map<std::string, at::Tensor> tensors_;
};

void load_head(StoredTensors& stored, const ParamUnit& head) {
  head.flat().detach().zero_();
  for (const std::string prefix : kHeads) {
    if (!stored.contains(prefix + ".weight")) {
      continue;
    }
    stored.take(prefix + ".weight", head.view(0));
    if (stored.contains(prefix + ".bias")) {
      stored.take(prefix + ".bias", head.view(1));
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
  StoredTensors stored(dir);
  for (const ParamUnit* unit : model.trunk().units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      stored.take(unit->specs()[i].name, unit->view(i));
    }
  }
  load_head(stored, model.head());
  stored.refuse_the_rest();
}

void save_value_model(const ValueModel& model, const fs::path& dir) {
  write_text(dir / "config.json", value_config_json(model.trunk()));
  std::vector<TensorToWrite> tensors;
  for (const ParamUnit* unit : model.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      tensors.push_back({unit->specs()[i].name, unit->view(i), unit->flat().scalar_type()});
    }
  }
  fs::remove(dir / kIndexFile);  // of an older, sharded model: the single file is what loads, but
                                 // both would mislead
  write_safetensors(dir / kSingleFile, std::move(tensors));
}

}  // namespace ringside::engine
