#include "rl/losses/policy_loss.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>

namespace ringside::rl {

const PolicyLoss& policy_loss(PolicyLossName name) {
  for (const PolicyLoss* loss : {&kPpoClipLoss, &kCispoLoss, &kSapoLoss, &kDppoTvLoss, &kGmpoLoss,
                                 &kReinforceLoss, &kClipCovLoss, &kKlCovLoss, &kDppoKlLoss}) {
    if (loss->name == name) {
      return *loss;
    }
  }
  throw std::invalid_argument("algorithm.loss " + std::to_string(static_cast<int>(name)) +
                              " is not in the table of losses");
}

at::Tensor in_token_form(const at::Tensor& mean_n, const at::Tensor& token_n) {
  return mean_n + token_n - token_n.detach();
}

std::pair<double, double> ratio_bounds(const AlgorithmConfig& config) {
  if (config.loss == PolicyLossName::kCispo && config.cispo.bounds == CispoBounds::kAbsolute) {
    return {config.clip_low, config.clip_high};
  }
  return {1.0 - config.clip_low, 1.0 + config.clip_high};
}

}  // namespace ringside::rl
