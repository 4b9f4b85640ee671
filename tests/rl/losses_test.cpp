// Guards: the wrong branch of the clip, a KL of the wrong sign or direction, weights that do not
// reach the gradient, and a rank without tokens that breaks the backward. Oracles: closed forms and
// finite differences in fp64.
#include <cmath>

#include "rl/step/update_loss.h"
#include "tests/rl/fetched_figures.h"
#include "tests/support/catch.h"

using namespace ringside;

namespace {

engine::Columns make_entries(const std::vector<double>& old_logprob,
                             const std::vector<double>& reference,
                             const std::vector<double>& advantage,
                             const std::vector<double>& weight) {
  const auto column = [](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble);
  };
  engine::Columns entries;
  entries.set("old_logprob", column(old_logprob));
  entries.set("rollout_logprob", column(old_logprob));
  entries.set("reference_logprob", column(reference));
  entries.set("advantage", column(advantage));
  entries.set("weight", column(weight));
  entries.set("correction", at::ones_like(entries["weight"]));
  entries.set("sample", at::zeros({entries["weight"].size(0)}, at::kLong));
  return entries;
}

// The loss with the configured KL coefficient, and its figures.
struct Loss {
  at::Tensor value;
  rl::StepFigures figures;
};

Loss loss_of(const at::Tensor& logprob, const engine::Columns& entries,
             const rl::AlgorithmConfig& config) {
  rl::Figures figures;
  const at::Tensor value = rl::policy_gradient_loss(logprob, at::ones_like(logprob.detach()),
                                                    entries, config, {config.kl_coef}, figures);
  return {value, test::fetched(figures)};
}

double loss_at_ratio(double advantage, double ratio, const rl::AlgorithmConfig& config) {
  const auto entries = make_entries({0.0}, {0.0}, {advantage}, {1.0});
  const at::Tensor logprob = at::tensor({std::log(ratio)}, at::kDouble);
  return loss_of(logprob, entries, config).value.item<double>();
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
    const auto result = loss_of(logprob, entries, config);
    CHECK(result.figures["kl"] == Approx(k3).margin(1e-8));
    CHECK(result.value.item<double>() == Approx(2.0 * k3).margin(1e-8));
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
  const auto result = loss_of(logprob, entries, config);
  result.value.backward();
  CHECK(result.figures["kl"] == Approx(std::exp(-0.4) + 0.4 - 1.0));
  CHECK(logprob.grad().item<double>() == Approx(0.4));
}

TEST_CASE("the gradient equals finite differences, and is zero where the clip binds") {
  rl::AlgorithmConfig config;
  config.kl_coef = 0.1;
  const auto entries = make_entries({-1.0, -0.4, -2.0, -0.7}, {-1.1, -0.5, -1.5, -0.7},
                                    {1.0, -0.5, 2.0, 1.0}, {0.1, 0.2, 0.3, 0.4});
  const at::Tensor start = at::tensor({-1.1, -0.3, -2.05, 0.3}, at::kDouble);
  const auto value_of = [&](const at::Tensor& x) { return loss_of(x, entries, config).value; };
  const at::Tensor logprob = start.clone().requires_grad_();
  value_of(logprob).backward();
  const double h = 1e-6;
  for (int64_t i = 0; i < 4; ++i) {
    at::Tensor up = start.clone(), down = start.clone();
    up[i] += h;
    down[i] -= h;
    const double numeric = (value_of(up) - value_of(down)).item<double>() / (2 * h);
    CHECK(logprob.grad()[i].item<double>() == Approx(numeric).margin(1e-8));
  }
  config.kl_coef = 0.0;
  const at::Tensor clipped = start.clone().requires_grad_();
  value_of(clipped).backward();
  CHECK(clipped.grad()[3].item<double>() == 0.0);  // A > 0, ratio e > 1.2
}

TEST_CASE("figures of a loss: counts, clip shares, mismatch") {
  rl::AlgorithmConfig config;
  const auto entries =
      make_entries({-0.5, -1.5, -1.0}, {0, 0, 0}, {1.0, -1.0, 1.0}, {0.5, 0.25, 0.25});
  const at::Tensor logprob = at::tensor({0.0, -2.0, -1.0}, at::kDouble);
  engine::Columns sampled = entries;
  sampled.set("rollout_logprob", at::full({3}, -1.0, at::kDouble));
  const auto figures = loss_of(logprob, sampled, config).figures;
  CHECK(figures["tokens"] == 3);
  CHECK(figures["entropy"] == Approx(1.0));
  CHECK(figures["clipped_high"] == Approx(1.0 / 3));
  CHECK(figures["clipped_low"] == Approx(1.0 / 3));
  // Of the old policy against the sampler's, not of the current one.
  CHECK(figures["sampling_difference"] == Approx(1.0 / 3));
  CHECK(figures["sampling_difference_max"] == Approx(0.5));
  CHECK(figures["mult_prob_error"] == Approx((2 * std::exp(0.5) + 1) / 3));
  CHECK(figures["never_collected"] == 0.0);
}

TEST_CASE("with the sampler's log-probs as the old ones the mismatch is the current policy's") {
  rl::AlgorithmConfig config;
  config.old_logprobs = rl::OldLogprobs::kRollout;
  const auto entries = make_entries({-1.0, -1.0}, {0, 0}, {1.0, -1.0}, {0.5, 0.5});
  const auto figures = loss_of(at::tensor({-0.5, -1.5}, at::kDouble), entries, config).figures;
  CHECK(figures["sampling_difference"] == Approx(0.5));
}

TEST_CASE("figures of micro-batches and steps are combined by their rules") {
  rl::Figures parts;
  for (const double x : {1.0, 4.0}) {
    const at::Tensor two = at::full({2}, x, at::kDouble);
    parts.count(two);
    parts.sum("sum", two);
    parts.mean("mean", two);
    parts.max("max", two);
  }
  const at::Tensor none = at::empty({0}, at::kDouble);
  parts.count(none);
  parts.mean("mean", none);
  parts.max("max", none);
  rl::StepFigures steps = test::fetched(parts);
  CHECK(steps["sum"] == 10.0);
  CHECK(steps["mean"] == 2.5);
  CHECK(steps["max"] == 4.0);
  CHECK(test::fetched(parts)["sum"] == 0.0);  // they were taken
  rl::StepFigures second;
  second.set("tokens", rl::FigureRule::kSum, 1);
  second.set("mean", rl::FigureRule::kMean, 5.0);
  second.set("max", rl::FigureRule::kMax, std::nan(""));
  steps += second;
  CHECK(steps["mean"] == 3.0);
  CHECK(std::isnan(steps["max"]));
}

TEST_CASE("a rank without tokens still has a gradient path") {
  rl::AlgorithmConfig config;
  config.kl_coef = 0.1;
  const auto entries = make_entries({}, {}, {}, {});
  const at::Tensor hidden = at::zeros({0}, at::kDouble).requires_grad_();
  const auto result = loss_of(hidden * 2.0, entries, config);
  CHECK(result.value.item<double>() == 0.0);
  result.value.backward();
  CHECK(hidden.grad().defined());
  rl::Figures figures;
  CHECK(rl::sft_loss(hidden * 2.0, at::zeros({0}, at::kDouble), entries["weight"], figures)
            .requires_grad());
}

TEST_CASE("sft is the weighted negative log-likelihood") {
  const auto entries = make_entries({0, 0}, {0, 0}, {0, 0}, {0.5, 0.25});
  const at::Tensor logprob = at::tensor({-2.0, -4.0}, at::kDouble);
  rl::Figures figures;
  CHECK(rl::sft_loss(logprob, at::zeros_like(logprob), entries["weight"], figures).item<double>() ==
        Approx(2.0));
}
