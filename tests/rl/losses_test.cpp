// Guards: the wrong branch of the clip, a KL of the wrong sign or direction, weights that do not
// reach the gradient, and a rank without tokens that breaks the backward. Oracles: closed forms and
// finite differences in fp64.
#include "rl/algorithm/losses.h"

#include <cmath>
#include <numeric>

#include "tests/support/catch.h"

using namespace ringside;

namespace {

rl::EntryColumns make_entries(const std::vector<double>& old_logprob,
                              const std::vector<double>& reference,
                              const std::vector<double>& advantage,
                              const std::vector<double>& weight) {
  const auto column = [](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble);
  };
  rl::EntryColumns entries;
  entries.old_logprob_n = column(old_logprob);
  entries.rollout_logprob_n = column(old_logprob);
  entries.reference_logprob_n = column(reference);
  entries.advantage_n = column(advantage);
  entries.weight_n = column(weight);
  entries.correction_n = at::ones_like(entries.weight_n);
  entries.sample_n = at::zeros({entries.weight_n.size(0)}, at::kLong);
  return entries;
}

double loss_at_ratio(double advantage, double ratio, const rl::AlgorithmConfig& config) {
  const auto entries = make_entries({0.0}, {0.0}, {advantage}, {1.0});
  const at::Tensor logprob = at::tensor({std::log(ratio)}, at::kDouble);
  return rl::policy_gradient_loss(logprob, at::zeros_like(logprob), entries, config,
                                  {config.kl_coef})
      .loss.item<double>();
}

}  // namespace

TEST_CASE("the clipped loss reproduces the golden numbers") {
  rl::AlgorithmConfig config;
  CHECK(loss_at_ratio(1, 1.5, config) == Approx(-1.2));
  CHECK(loss_at_ratio(1, 0.5, config) == Approx(-0.5));
  CHECK(loss_at_ratio(-1, 1.5, config) == Approx(1.5));
  CHECK(loss_at_ratio(-1, 0.5, config) == Approx(0.8));
  CHECK(loss_at_ratio(-1, 5, config) == Approx(5.0));
  config.clip_high = 0.28;
  CHECK(loss_at_ratio(1, 1.5, config) == Approx(-1.28));
}

TEST_CASE("k3 of d = logprob - reference, golden numbers of both signs") {
  rl::AlgorithmConfig config;
  config.kl_coef = 2.0;
  for (const auto& [d, k3] :
       std::vector<std::pair<double, double>>{{0.3, 0.04081822}, {-0.3, 0.04985881}}) {
    const auto entries = make_entries({-1.0}, {-1.0 - d}, {0.0}, {1.0});
    const at::Tensor logprob = at::tensor({-1.0}, at::kDouble);
    const auto result = rl::policy_gradient_loss(logprob, at::zeros_like(logprob), entries, config,
                                                 {config.kl_coef});
    CHECK(result.figures.fetch().kl == Approx(k3).margin(1e-8));
    CHECK(result.loss.item<double>() == Approx(2.0 * k3).margin(1e-8));
  }
}

TEST_CASE("on policy, the unbiased k3 has the value of k3 and the gradient of the reverse KL") {
  rl::AlgorithmConfig config;
  config.kl_coef = 1.0;
  config.kl_estimator = rl::KlEstimator::kK3Unbiased;
  // d/dx of E_old[r (exp(ref - x) - (ref - x) - 1)] at x = old: -expm1(ref - x) + k3(ref - x) = x -
  // ref.
  const auto entries = make_entries({-1.0}, {-1.4}, {0.0}, {1.0});
  const at::Tensor logprob = at::tensor({-1.0}, at::kDouble).requires_grad_();
  const auto result = rl::policy_gradient_loss(logprob, at::zeros({1}, at::kDouble), entries,
                                               config, {config.kl_coef});
  result.loss.backward();
  CHECK(result.figures.fetch().kl == Approx(std::exp(-0.4) + 0.4 - 1.0));
  CHECK(logprob.grad().item<double>() == Approx(0.4));
}

TEST_CASE("the gradient equals finite differences, and is zero where the clip binds") {
  rl::AlgorithmConfig config;
  config.kl_coef = 0.1;
  const auto entries = make_entries({-1.0, -0.4, -2.0, -0.7}, {-1.1, -0.5, -1.5, -0.7},
                                    {1.0, -0.5, 2.0, 1.0}, {0.1, 0.2, 0.3, 0.4});
  const at::Tensor start = at::tensor({-1.1, -0.3, -2.05, 0.3}, at::kDouble);
  const auto loss_of = [&](const at::Tensor& x) {
    return rl::policy_gradient_loss(x, at::zeros_like(x), entries, config, {config.kl_coef}).loss;
  };
  const at::Tensor logprob = start.clone().requires_grad_();
  loss_of(logprob).backward();
  const double h = 1e-6;
  for (int64_t i = 0; i < 4; ++i) {
    at::Tensor up = start.clone(), down = start.clone();
    up[i] += h;
    down[i] -= h;
    const double numeric = (loss_of(up) - loss_of(down)).item<double>() / (2 * h);
    CHECK(logprob.grad()[i].item<double>() == Approx(numeric).margin(1e-8));
  }
  config.kl_coef = 0.0;
  const at::Tensor clipped = start.clone().requires_grad_();
  loss_of(clipped).backward();
  CHECK(clipped.grad()[3].item<double>() == 0.0);  // A > 0, ratio e > 1.2
}

TEST_CASE("sums add up: counts, clip shares, mismatch") {
  rl::AlgorithmConfig config;
  config.old_logprobs = rl::OldLogprobs::kRollout;  // the mismatch is the current policy's
  const auto entries =
      make_entries({-1.0, -1.0, -1.0}, {0, 0, 0}, {1.0, -1.0, 1.0}, {0.5, 0.25, 0.25});
  const at::Tensor logprob = at::tensor({-0.5, -1.5, -1.0}, at::kDouble);
  const auto sums = rl::policy_gradient_loss(logprob, at::ones({3}, at::kDouble), entries, config,
                                             {config.kl_coef})
                        .figures.fetch();
  CHECK(sums.tokens == 3);
  CHECK(sums.entropy == Approx(3.0));
  CHECK(sums.ratio_clipped_high == 1);
  CHECK(sums.ratio_clipped_low == 1);
  CHECK(sums.sampling_difference == Approx(1.0));
  CHECK(sums.sampling_difference_max == Approx(0.5));
  CHECK(sums.mult_prob_error == Approx(2 * std::exp(0.5) + 1));
  // Every field has its own place in the list that ranks add up.
  std::vector<double> list = sums.additive();
  std::iota(list.begin(), list.end(), 1.0);
  const rl::LossSums numbered = rl::LossSums::from(list, 0.5);
  CHECK(numbered.additive() == list);
  CHECK(numbered.sampling_difference_max == 0.5);
  CHECK(numbered.loss == 1.0);
  CHECK(numbered.rho_squared == static_cast<double>(list.size()));
}

TEST_CASE("a rank without tokens still has a gradient path") {
  rl::AlgorithmConfig config;
  config.kl_coef = 0.1;
  const auto entries = make_entries({}, {}, {}, {});
  const at::Tensor hidden = at::zeros({0}, at::kDouble).requires_grad_();
  const auto result = rl::policy_gradient_loss(hidden * 2.0, at::zeros({0}, at::kDouble), entries,
                                               config, {config.kl_coef});
  CHECK(result.loss.item<double>() == 0.0);
  result.loss.backward();
  CHECK(hidden.grad().defined());
  CHECK(rl::sft_loss(hidden * 2.0, at::zeros({0}, at::kDouble), entries.weight_n)
            .loss.requires_grad());
}

TEST_CASE("sft is the weighted negative log-likelihood") {
  const auto entries = make_entries({0, 0}, {0, 0}, {0, 0}, {0.5, 0.25});
  const at::Tensor logprob = at::tensor({-2.0, -4.0}, at::kDouble);
  CHECK(rl::sft_loss(logprob, at::zeros_like(logprob), entries.weight_n).loss.item<double>() ==
        Approx(2.0));
}
