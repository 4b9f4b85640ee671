#include "rl/trainer/checkpoint.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "engine/io/adapter_directory.h"
#include "engine/io/atomic_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/io/safetensors.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateFile = "trainer/state.json";
constexpr const char* kAdapterDir = "adapter";
constexpr const char* kTensorFile = "trainer/optimizer.safetensors";

// Optimizer moments, and the master weights if the model's files hold them in lower precision.
std::vector<std::pair<std::string, at::Tensor>> trainer_tensors(const engine::ModelRunner& policy) {
  auto tensors = policy.named_state();
  if (policy.decoder().adapters() == nullptr &&  // adapters have files of their own
      policy.decoder().compute_dtype() == at::kBFloat16) {
    for (const engine::ParamUnit* unit : policy.decoder().units()) {
      for (std::size_t i = 0; i < unit->specs().size(); ++i) {
        tensors.emplace_back("master." + unit->specs()[i].name, unit->view(i));
      }
    }
  }
  return tensors;
}

void write_state(const fs::path& path, const TrainingState& state) {
  const nlohmann::json content{{"step", state.step},
                               {"optimizer_step", state.optimizer_step},
                               {"weight_version", state.weight_version},
                               {"seed", state.seed},
                               {"run_id", state.run_id},
                               {"kl_coef", state.kl_coef},
                               {"entropy_coef", state.entropy_coef},
                               {"entropy", state.entropy}};
  std::ofstream file(path, std::ios::trunc);
  file << content.dump(2) << '\n';
  file.flush();
  if (!file) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

TrainingState read_state(const fs::path& path) {
  std::ifstream file(path);
  try {
    const auto content = nlohmann::json::parse(file);
    return {content.at("step"),
            content.at("optimizer_step"),
            content.at("weight_version"),
            content.at("seed"),
            content.at("run_id"),
            content.value("kl_coef", 0.0),
            content.value("entropy_coef", 0.0),
            content.value("entropy", 0.0)};
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

void read_tensors(const fs::path& path,
                  const std::vector<std::pair<std::string, at::Tensor>>& wanted) {
  const engine::SafetensorsFile file(path);
  std::map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < file.entries().size(); ++i) {
    by_name[file.entries()[i].name] = i;
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, target] : wanted) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      throw std::runtime_error(path.string() + " lacks tensor " + name);
    }
    const at::Tensor source = file.tensor(found->second);
    if (source.sizes() != target.sizes()) {
      throw std::runtime_error(path.string() + ": tensor " + name +
                               " does not have the model's shape");
    }
    at::Tensor(target).copy_(source);
  }
}

// Finished steps of a complete checkpoint, or nullopt.
std::optional<int64_t> step_of(const fs::path& dir) {
  if (!fs::exists(dir / kStateFile)) {
    return std::nullopt;
  }
  return read_state(dir / kStateFile).step;
}

// Complete checkpoints under run_dir/checkpoints, by step.
std::map<int64_t, fs::path> intermediate_checkpoints(const fs::path& run_dir) {
  std::map<int64_t, fs::path> found;
  if (!fs::is_directory(run_dir / "checkpoints")) {
    return found;
  }
  for (const auto& entry : fs::directory_iterator(run_dir / "checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tmp-") != std::string::npos || name.find(".old-") != std::string::npos) {
      continue;  // incomplete: a save was interrupted
    }
    if (const auto step = step_of(entry.path())) {
      found[*step] = entry.path();
    }
  }
  return found;
}

}  // namespace

void save_checkpoint(const fs::path& dir, const engine::ModelRunner& policy,
                     const TrainingState& state, const fs::path& tokenizer_from,
                     const std::vector<CheckpointPart>& parts) {
  engine::AtomicDirectory directory(dir);
  engine::SaveOptions options;
  options.copy_tokenizer_from = tokenizer_from;
  engine::save_decoder(policy.decoder(), directory.path(), policy.decoder().compute_dtype(),
                       options);
  if (const engine::Adapters* adapters = policy.decoder().adapters()) {
    fs::create_directories(directory.path() / kAdapterDir);
    engine::save_adapters(*adapters, directory.path() / kAdapterDir, tokenizer_from);
  }
  fs::create_directories(directory.path() / "trainer");
  std::vector<engine::TensorToWrite> tensors;
  for (const auto& [name, tensor] : trainer_tensors(policy)) {
    tensors.push_back({name, tensor, tensor.scalar_type()});
  }
  engine::write_safetensors(directory.path() / kTensorFile, std::move(tensors));
  for (const CheckpointPart& part : parts) {
    part(directory.path() / "trainer");
  }
  write_state(directory.path() / kStateFile, state);
  directory.commit();
}

TrainingState load_checkpoint(const fs::path& dir, engine::ModelRunner& policy) {
  if (engine::Adapters* adapters = policy.decoder().adapters()) {
    engine::load_adapters(dir / kAdapterDir, *adapters);  // the base is that of model.path
  } else {
    engine::load_weights(dir, policy.decoder());
  }
  read_tensors(dir / kTensorFile, trainer_tensors(policy));
  const TrainingState state = read_state(dir / kStateFile);
  policy.set_step_count(state.optimizer_step);
  return state;
}

fs::path checkpoint_path(const fs::path& run_dir, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%06lld", static_cast<long long>(step));
  return run_dir / "checkpoints" / name;
}

std::optional<fs::path> latest_checkpoint(const fs::path& run_dir) {
  auto candidates = intermediate_checkpoints(run_dir);
  if (const auto step = step_of(run_dir / "checkpoint-final")) {
    candidates[*step] = run_dir / "checkpoint-final";
  }
  if (candidates.empty()) {
    return std::nullopt;
  }
  return candidates.rbegin()->second;
}

int64_t checkpoint_step(const fs::path& dir) { return read_state(dir / kStateFile).step; }

void prune_checkpoints(const fs::path& run_dir, int64_t keep) {
  if (keep == 0) {
    return;
  }
  auto found = intermediate_checkpoints(run_dir);
  while (static_cast<int64_t>(found.size()) > keep) {
    fs::remove_all(found.begin()->second);
    found.erase(found.begin());
  }
}

}  // namespace ringside::rl
