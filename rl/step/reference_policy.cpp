#include "rl/step/reference_policy.h"

#include <ATen/ATen.h>

#include "rl/setup/model_setup.h"

namespace ringside::rl {

ReferencePolicy::ReferencePolicy(const Config& config, const sp::ProcessGroups& comms)
    : update_every_(config.algorithm.reference_update_every),
      mixup_(config.algorithm.reference_mixup),
      runner_(
          std::make_unique<engine::LanguageModel>(load_starting_model(
              config,
              config.model.reference_path.empty() ? config.model.path : config.model.reference_path,
              compute_context(config, comms))),
          comms) {}

void ReferencePolicy::follow(const engine::ModelRunner& policy, int64_t step) {
  if (update_every_ > 0 && step % update_every_ == 0) {
    runner_.interpolate_towards(policy, mixup_);
  }
}

std::unique_ptr<ReferencePolicy> make_reference(const Config& config,
                                                const sp::ProcessGroups& comms) {
  const bool wanted = config.algorithm.kl_coef > 0.0 && config.algorithm.kl_to == KlTo::kReference;
  return wanted ? std::make_unique<ReferencePolicy>(config, comms) : nullptr;
}

}  // namespace ringside::rl
