#include "rl/step/reference_policy.h"

#include <ATen/ATen.h>

#include "rl/setup/model_setup.h"

namespace ringside::rl {

namespace {

std::unique_ptr<engine::Decoder> reference_model(const Config& config,
                                                 const engine::Decoder& policy) {
  const std::string& path = config.model.reference_path;
  if (path.empty() && policy.adapters() != nullptr) {
    return policy.without_adapters();
  }
  return load_starting_model(config, path.empty() ? config.model.path : path, policy.context(),
                             reference_storage(config));
}

}  // namespace

ReferencePolicy::ReferencePolicy(const Config& config, const engine::Decoder& policy,
                                 const sp::ProcessGroups& comms)
    : update_every_(config.algorithm.reference_update_every),
      mixup_(config.algorithm.reference_mixup),
      runner_(std::make_unique<engine::LanguageModel>(reference_model(config, policy)), comms) {}

void ReferencePolicy::follow(const engine::ModelRunner& policy, int64_t step) {
  if (update_every_ > 0 && step % update_every_ == 0) {
    runner_.interpolate_towards(policy, mixup_);
  }
}

std::unique_ptr<ReferencePolicy> make_reference(const Config& config, const engine::Decoder& policy,
                                                const sp::ProcessGroups& comms) {
  const bool wanted = config.algorithm.kl_coef > 0.0 && config.algorithm.kl_to == KlTo::kReference;
  return wanted ? std::make_unique<ReferencePolicy>(config, policy, comms) : nullptr;
}

}  // namespace ringside::rl
