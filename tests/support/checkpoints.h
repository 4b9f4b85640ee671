// Checkpoints written at once, without a run.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/checkpoint/export.h"
#include "rl/checkpoint/manifest.h"
#include "rl/checkpoint/part_file.h"

namespace ringside::test {

// The slices of a model under its name in the checkpoint.
inline std::vector<engine::NamedSlice> named_slices(const std::string& model,
                                                    const engine::ModelRunner& runner) {
  auto slices = runner.state_slices();
  for (engine::NamedSlice& slice : slices) {
    slice.name = model + "/" + slice.name;
  }
  return slices;
}

// Writes the policy into `dir` as `writers` ranks that all hold it would, and returns the manifest
// that was written: `manifest` with its parts and the policy's optimizer steps.
// Throws: what rl::write_part and rl::write_manifest throw.
inline rl::CheckpointManifest save_checkpoint(const std::filesystem::path& dir,
                                              const engine::ModelRunner& policy,
                                              rl::CheckpointManifest manifest,
                                              int64_t writers = 1) {
  std::filesystem::create_directories(dir);
  const auto slices = named_slices("policy", policy);
  manifest.parts.clear();
  for (int64_t writer = 0; writer < writers; ++writer) {
    manifest.parts.push_back(rl::write_part(dir, {manifest.state.step, writer, writers},
                                            engine::share_of(slices, writer, writers)));
  }
  manifest.optimizer_steps = {{"policy", policy.step_count()}};
  rl::write_model_description(dir, policy.model(), "");
  rl::write_manifest(dir, manifest);
  return manifest;
}

}  // namespace ringside::test
