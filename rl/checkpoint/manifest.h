// Manifest of a checkpoint: which parts belong to it, with sizes and hashes, and the counters of
// the run. A directory with a manifest is a complete checkpoint. rl/trainer/README.md "Run
// directory" describes the format. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rl/checkpoint/training_state.h"

namespace ringside::rl {

// One rank's file of a checkpoint.
struct PartFile {
  std::string name;
  int64_t bytes = 0;
  std::string hash;  // XXH3-128 of the file, 32 hex digits
  bool operator==(const PartFile&) const = default;
};

// Written last: a directory without it is no complete checkpoint.
inline constexpr const char* kManifestFile = "manifest.json";

// "part-00000-of-00004.safetensors". part: from 0.
std::string part_name(int64_t part, int64_t parts);

// What an evaluation after the checkpoint's last step gave.
struct EvaluationResult {
  std::string metric;  // as best_metric(); of a loss less is better
  double value = 0.0;

  // Higher is better.
  double score() const { return metric.ends_with("loss") ? -value : value; }
};

struct CheckpointManifest {
  TrainingState state;
  // Sizes of the mesh that saved it, by name: for people; loading does not depend on it.
  std::vector<std::pair<std::string, int64_t>> layout;
  // Optimizer steps of each model in the parts: "policy", "critic", "reference".
  std::map<std::string, int64_t> optimizer_steps;
  std::optional<EvaluationResult> evaluation;
  std::vector<PartFile> parts;
};

// Whether `dir` is a complete checkpoint: whether it has a manifest, which is not read.
bool is_checkpoint(const std::filesystem::path& dir);

// Writes DIR/manifest.json, durably.
// Throws: std::system_error.
void write_manifest(const std::filesystem::path& dir, const CheckpointManifest& manifest);

// The manifest of a checkpoint.
// Throws: std::runtime_error naming the file when it is missing or not of this form.
CheckpointManifest read_manifest(const std::filesystem::path& dir);

}  // namespace ringside::rl
