#include "rl/reference_policy.h"

#include <ATen/ATen.h>

#include "engine/weights/hf_directory.h"
#include "rl/training_run.h"

namespace ringside::rl {

ReferencePolicy::ReferencePolicy(const Config& config)
    : update_every_(config.algorithm.reference_update_every), mixup_(config.algorithm.reference_mixup) {
  const std::string& path =
      config.model.reference_path.empty() ? config.model.path : config.model.reference_path;
  decoder_ = load_starting_model(config, path);
}

void ReferencePolicy::follow(const engine::Decoder& policy, int64_t step) {
  if (update_every_ == 0 || step % update_every_ != 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto theirs = policy.units();
  const auto ours = decoder_->units();
  for (std::size_t u = 0; u < ours.size(); ++u) {
    ours[u]->flat().lerp_(theirs[u]->flat(), mixup_);
  }
}

void ReferencePolicy::save(const std::filesystem::path& dir) const {
  std::filesystem::create_directories(dir);
  const bool fp64 = decoder_->compute_dtype() == at::kDouble;
  engine::save_decoder(*decoder_, dir, fp64 ? at::kDouble : at::kFloat, {});
}

void ReferencePolicy::load(const std::filesystem::path& dir) { engine::load_weights(dir, *decoder_); }

std::unique_ptr<ReferencePolicy> make_reference(const Config& config) {
  const bool wanted = config.algorithm.kl_coef > 0.0 && config.algorithm.kl_to == KlTo::kReference;
  return wanted ? std::make_unique<ReferencePolicy>(config) : nullptr;
}

}  // namespace ringside::rl
