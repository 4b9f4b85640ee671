#include "rl/step/reference_policy.h"

#include <ATen/ATen.h>

#include "rl/config/task.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {

namespace {

std::vector<std::unique_ptr<engine::Decoder>> reference_stages(const Config& config,
                                                               const engine::HeadedModel& policy) {
  const std::string& path = config.model.reference_path;
  if (!path.empty() || policy.trunk().adapters() == nullptr) {
    return load_starting_stages(config, path.empty() ? config.model.path : path,
                                policy.trunk().context(), reference_storage(config));
  }
  std::vector<std::unique_ptr<engine::Decoder>> stages;
  for (const engine::Decoder* stage : policy.stages()) {
    stages.push_back(stage->without_adapters());
  }
  return stages;
}

}  // namespace

ReferencePolicy::ReferencePolicy(const Config& config, const engine::HeadedModel& policy,
                                 const sp::ProcessGroups& comms)
    : update_every_(config.algorithm.reference_update_every),
      mixup_(config.algorithm.reference_mixup),
      runner_(std::make_unique<engine::LanguageModel>(reference_stages(config, policy)), comms) {}

void ReferencePolicy::follow(const engine::ModelRunner& policy, int64_t step) {
  if (update_every_ > 0 && step % update_every_ == 0) {
    runner_.interpolate_towards(policy, mixup_);
  }
}

std::unique_ptr<ReferencePolicy> make_reference(const Config& config,
                                                const engine::HeadedModel& policy,
                                                const sp::ProcessGroups& comms) {
  return has_reference(config) ? std::make_unique<ReferencePolicy>(config, policy, comms) : nullptr;
}

}  // namespace ringside::rl
