// Reference policy for the KL penalty: a frozen copy of the starting weights, or an average that
// follows the trained policy.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"

namespace ringside::rl {

class ReferencePolicy {
 public:
  // Loads model.reference_path, or model.path if that is empty. If that is empty and `policy` has
  // adapters, the reference is the policy without them and shares its memory. Not collective.
  // Throws: as load_starting_model().
  ReferencePolicy(const Config& config, const engine::HeadedModel& policy,
                  const sp::ProcessGroups& comms);

  const engine::ModelRunner& runner() const { return runner_; }
  engine::ModelRunner& runner() { return runner_; }

  // Updates the reference after step `step` (counted from 1). Every
  // algorithm.reference_update_every steps, in master weights: reference = mixup x policy + (1 -
  // mixup) x reference. Not collective: each rank updates its part.
  // Source: TRL's sync_ref_model; TR-DPO, Gorbatovski et al. 2024.
  void follow(const engine::ModelRunner& policy, int64_t step);

  // Whether checkpoints must hold the reference. A frozen one is read from its own directory again.
  bool moves() const { return update_every_ > 0; }

 private:
  int64_t update_every_;
  double mixup_;
  engine::ModelRunner runner_;
};

// The reference policy that the configuration asks for, or nullptr. Not collective.
// Throws: as ReferencePolicy.
std::unique_ptr<ReferencePolicy> make_reference(const Config& config,
                                                const engine::HeadedModel& policy,
                                                const sp::ProcessGroups& comms);

}  // namespace ringside::rl
