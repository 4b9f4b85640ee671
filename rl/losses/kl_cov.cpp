// Loss kl_cov: -A r, and of the chosen tokens -A r + kl_cov.kl_coef |log r|; no ratio is clipped.
// Chosen are the kl_cov.ratio of a mini-batch's tokens, rounded down, with the largest covariance
// (covariance.h), of equal ones the first.
// Source: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning, eq. 14; verl's kl_cov,
// which chooses anew in each micro-batch.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "rl/losses/covariance.h"
#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

constexpr LossKey kKlCovRatio{
    .name = "ratio",
    .value = 2e-4,
    .sentence = "share of a mini-batch's tokens that have a KL term, those of largest covariance",
    .low = 0,
    .high = 1};
constexpr LossKey kKlCovCoef{.name = "kl_coef",
                             .value = 0.1,
                             .sentence = "weight of that term, |log-prob - old log-prob|",
                             .low = 0};
constexpr std::array kKlCovKeys = {kKlCovRatio, kKlCovCoef};

std::vector<double> choose_kl_cov(const ChoicePart& part, const LossOptions& options) {
  const auto covariance = token_covariances(part);
  std::vector<std::size_t> order(covariance.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return covariance[a] > covariance[b]; });
  return choose_first(order, options[kKlCovRatio], covariance.size());
}

at::Tensor kl_cov_term(const LossInputs& in) {
  const at::Tensor loss = -in.advantage_n * in.log_ratio_n.exp();
  return in.chosen_n.defined() ? loss + in.options[kKlCovCoef] * in.chosen_n * in.log_ratio_n.abs()
                               : loss;
}

}  // namespace

extern const PolicyLoss kKlCov{
    .name = "kl_cov",
    .sentence = "ratio, with a KL to the old policy on tokens that vary together most",
    .keys = kKlCovKeys,
    .term = kl_cov_term,
    .choose = choose_kl_cov};

}  // namespace ringside::rl
