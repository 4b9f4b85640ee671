#include "rl/checkpoint/manifest.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/io/disk_file.h"

namespace ringside::rl {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFormat = "ringside checkpoint 1";

nlohmann::ordered_json state_json(const TrainingState& state) {
  nlohmann::ordered_json json{{"step", state.step},
                              {"optimizer_step", state.optimizer_step},
                              {"weight_version", state.weight_version},
                              {"seed", state.seed},
                              {"run_id", state.run_id},
                              {"kl_coef", state.kl_coef},
                              {"entropy_coef", state.entropy_coef},
                              {"entropy", state.entropy}};
  if (!state.curriculum.empty()) {
    json["curriculum"] = state.curriculum;
  }
  for (const TrainingState& adapter : state.adapters) {
    json["adapters"].push_back({{"optimizer_step", adapter.optimizer_step},
                                {"kl_coef", adapter.kl_coef},
                                {"entropy_coef", adapter.entropy_coef},
                                {"entropy", adapter.entropy}});
  }
  return json;
}

TrainingState parse_state(const nlohmann::json& json) {
  TrainingState state{
      json.at("step"),         json.at("optimizer_step"), json.at("weight_version"),
      json.at("seed"),         json.at("run_id"),         json.at("kl_coef"),
      json.at("entropy_coef"), json.at("entropy"),        json.value("curriculum", "")};
  for (const nlohmann::json& own : json.value("adapters", nlohmann::json::array())) {
    TrainingState adapter = state;
    adapter.adapters.clear();
    adapter.optimizer_step = own.at("optimizer_step");
    adapter.kl_coef = own.at("kl_coef");
    adapter.entropy_coef = own.at("entropy_coef");
    adapter.entropy = own.at("entropy");
    state.adapters.push_back(std::move(adapter));
  }
  return state;
}

std::vector<PartFile> parse_parts(const nlohmann::json& json) {
  std::vector<PartFile> parts;
  const auto count = static_cast<int64_t>(json.size());
  for (const nlohmann::json& entry : json) {
    PartFile part{entry.at("file"), entry.at("bytes"), entry.at("xxh3_128")};
    const std::string expected = part_name(static_cast<int64_t>(parts.size()), count);
    if (part.name != expected) {
      throw std::runtime_error("names the part " + part.name + ", expected " + expected);
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) {
    throw std::runtime_error("names no parts");
  }
  return parts;
}

}  // namespace

std::string part_name(int64_t part, int64_t parts) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "part-%05lld-of-%05lld.safetensors",
                static_cast<long long>(part), static_cast<long long>(parts));
  return name.data();
}

bool is_checkpoint(const fs::path& dir) { return fs::exists(dir / kManifestFile); }

void write_manifest(const fs::path& dir, const CheckpointManifest& manifest) {
  nlohmann::ordered_json layout = nlohmann::ordered_json::object();
  for (const auto& [name, size] : manifest.layout) {
    layout[name] = size;
  }
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const PartFile& part : manifest.parts) {
    parts.push_back({{"file", part.name}, {"bytes", part.bytes}, {"xxh3_128", part.hash}});
  }
  nlohmann::ordered_json json{{"format", kFormat},
                              {"state", state_json(manifest.state)},
                              {"optimizer_steps", manifest.optimizer_steps},
                              {"layout", layout},
                              {"parts", parts}};
  if (manifest.evaluation) {
    json["evaluation"] = {{"metric", manifest.evaluation->metric},
                          {"value", manifest.evaluation->value}};
  }
  engine::write_text(dir / kManifestFile, json.dump(2) + "\n");
  engine::sync_path(dir / kManifestFile);
}

CheckpointManifest read_manifest(const fs::path& dir) {
  const fs::path path = dir / kManifestFile;
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error(path.string() + " is missing: " + dir.string() +
                             " is no complete checkpoint; those of a run are in its checkpoints/");
  }
  try {
    const auto json = nlohmann::json::parse(file);
    if (json.at("format") != kFormat) {
      throw std::runtime_error("format is " + json.at("format").dump() + ", expected \"" + kFormat +
                               "\"");
    }
    CheckpointManifest manifest;
    manifest.state = parse_state(json.at("state"));
    manifest.optimizer_steps = json.at("optimizer_steps");
    for (const auto& [name, size] : json.at("layout").items()) {
      manifest.layout.emplace_back(name, size);
    }
    if (json.contains("evaluation")) {
      manifest.evaluation = {json.at("evaluation").at("metric"), json.at("evaluation").at("value")};
    }
    manifest.parts = parse_parts(json.at("parts"));
    return manifest;
  } catch (const std::exception& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

}  // namespace ringside::rl
