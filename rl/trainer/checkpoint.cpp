#include "rl/trainer/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/io/disk_file.h"
#include "rl/checkpoint/checkpoint_reader.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFinalState = "ringside.json";

// A save that is not complete, or an older checkpoint that is being replaced.
bool is_temporary(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.find(".tmp-") != std::string::npos || name.find(".old-") != std::string::npos;
}

// A damaged checkpoint that set_aside() renamed.
bool is_set_aside(const fs::path& path) {
  return path.filename().string().find(".damaged") != std::string::npos;
}

std::vector<fs::path> entries_of(const fs::path& dir) {
  std::vector<fs::path> entries;
  if (fs::is_directory(dir)) {
    for (const auto& entry : fs::directory_iterator(dir)) {
      entries.push_back(entry.path());
    }
  }
  return entries;
}

// Complete checkpoints, by step.
std::map<int64_t, fs::path> complete_checkpoints(const fs::path& run_dir) {
  std::map<int64_t, fs::path> found;
  for (const fs::path& path : entries_of(run_dir / "checkpoints")) {
    if (!is_temporary(path) && !is_set_aside(path) && is_checkpoint(path)) {
      try {
        found[checkpoint_step(path)] = path;
      } catch (const std::runtime_error& error) {
        throw std::runtime_error(error.what() + std::string("; restore the file, or remove ") +
                                 path.string() + " to resume from an older checkpoint");
      }
    }
  }
  return found;
}

// Removes a directory that is not complete. One that commit_directory() put aside goes back to its
// name when the new one did not get there.
void recover(const fs::path& path) {
  if (!is_temporary(path)) {
    return;
  }
  const std::string name = path.string();
  const fs::path target = name.substr(0, std::min(name.rfind(".old-"), name.size()));
  if (target != path && !fs::exists(target)) {
    fs::rename(path, target);
  } else {
    fs::remove_all(path);
  }
}

// Renames it first: a removal that is interrupted leaves nothing that looks like a checkpoint.
void remove_checkpoint(const fs::path& dir) {
  const fs::path renamed = dir.string() + ".tmp-removed";
  fs::remove_all(renamed);
  fs::rename(dir, renamed);
  fs::remove_all(renamed);
}

}  // namespace

fs::path checkpoint_path(const fs::path& run_dir, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%06lld", static_cast<long long>(step));
  return run_dir / "checkpoints" / name;
}

std::optional<fs::path> latest_checkpoint(const fs::path& run_dir) {
  const auto found = complete_checkpoints(run_dir);
  if (found.empty()) {
    return std::nullopt;
  }
  return found.rbegin()->second;
}

std::string damage_of(const fs::path& dir, int64_t reader, int64_t readers) {
  try {
    CheckpointReader(dir).verify(reader, readers);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

SetAside set_aside(const fs::path& dir, const std::string& damage) {
  const fs::path run_dir = dir.parent_path().parent_path();
  auto others = complete_checkpoints(run_dir);
  std::erase_if(others, [&](const auto& other) { return other.second == dir; });
  if (others.empty()) {
    throw std::runtime_error("the only checkpoint is damaged: " + damage +
                             "; restore the file, or remove " + dir.string() +
                             " to start again from step 1");
  }
  fs::path moved = dir.string() + ".damaged";
  for (int number = 2; fs::exists(moved); ++number) {
    moved = dir.string() + ".damaged-" + std::to_string(number);
  }
  fs::rename(dir, moved);
  return {moved, others.rbegin()->second};
}

int64_t checkpoint_step(const fs::path& dir) { return read_manifest(dir).state.step; }

std::optional<BestCheckpoint> best_checkpoint(const fs::path& run_dir, const std::string& metric) {
  std::optional<BestCheckpoint> best;
  for (const auto& [step, dir] : complete_checkpoints(run_dir)) {
    const auto evaluation = read_manifest(dir).evaluation;
    if (evaluation && evaluation->metric == metric &&
        (!best || evaluation->score() > best->evaluation.score())) {
      best = {dir, *evaluation};
    }
  }
  return best;
}

void prune_checkpoints(const fs::path& run_dir, int64_t keep, const std::string& best_metric) {
  if (keep == 0) {
    return;
  }
  auto found = complete_checkpoints(run_dir);
  const auto best = best_metric.empty() ? std::nullopt : best_checkpoint(run_dir, best_metric);
  while (static_cast<int64_t>(found.size()) > keep) {
    if (!best || found.begin()->second != best->dir) {
      remove_checkpoint(found.begin()->second);
    }
    found.erase(found.begin());
  }
}

fs::path final_directory(const fs::path& run_dir) { return run_dir / "checkpoint-final"; }

void recover_checkpoints(const fs::path& run_dir) {
  for (const fs::path& path : entries_of(run_dir / "checkpoints")) {
    recover(path);
  }
  for (const fs::path& path : entries_of(run_dir)) {
    if (path.filename().string().starts_with(final_directory(run_dir).filename().string())) {
      recover(path);
    }
  }
}

void write_final_state(const fs::path& dir, const TrainingState& state) {
  const nlohmann::ordered_json json{{"step", state.step}, {"run_id", state.run_id}};
  engine::write_text(dir / kFinalState, json.dump(2) + "\n");
}

std::optional<int64_t> final_step(const fs::path& run_dir) {
  const fs::path path = final_directory(run_dir) / kFinalState;
  std::ifstream file(path);
  if (!file) {
    return std::nullopt;
  }
  try {
    return nlohmann::json::parse(file).at("step").get<int64_t>();
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

}  // namespace ringside::rl
