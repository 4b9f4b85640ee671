// The reference policy of the KL penalty: a frozen copy of the starting weights, or one that
// follows the trained policy.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"

namespace ringside::rl {

class ReferencePolicy {
 public:
  // Loads model.reference_path, or model.path when that is empty. Throws std::runtime_error when it
  // cannot be loaded.
  ReferencePolicy(const Config& config, const sp::ProcessGroups& comms);

  const engine::ModelRunner& runner() const { return runner_; }

  // After step `step` (from 1): every algorithm.reference_update_every steps reference = mixup x
  // policy + (1 - mixup) x reference, in master weights (TRL's sync_ref_model; TR-DPO, Gorbatovski
  // et al. 2024). Same on every rank.
  void follow(const engine::ModelRunner& policy, int64_t step);

  // Whether a checkpoint must hold it: one that never moves is read from its own directory again.
  bool moves() const { return update_every_ > 0; }
  void save(const std::filesystem::path& dir) const;
  void load(const std::filesystem::path& dir);

 private:
  int64_t update_every_;
  double mixup_;
  engine::ModelRunner runner_;
};

// The reference that the configuration asks for, or nullptr.
std::unique_ptr<ReferencePolicy> make_reference(const Config& config,
                                                const sp::ProcessGroups& comms);

}  // namespace ringside::rl
