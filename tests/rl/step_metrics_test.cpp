// Guards: staleness that is not counted token by token, a mismatch figure that is another than its
// name says. Oracle: closed forms.
#include "rl/trainer/step_metrics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/rl/fetched_figures.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace ringside;

namespace {

double value_of(const rl::Metrics& metrics, const std::string& name) {
  const auto found =
      std::find_if(metrics.begin(), metrics.end(), [&](const auto& m) { return m.first == name; });
  REQUIRE(found != metrics.end());
  return found->second;
}

bool has(const rl::Metrics& metrics, const std::string& name) {
  return std::any_of(metrics.begin(), metrics.end(),
                     [&](const auto& m) { return m.first == name; });
}

bridge::Rollout make_rollout(double reward, std::vector<bridge::VersionSpan> versions) {
  bridge::Rollout r;
  r.prompt_ids = {1};
  r.completion_ids.assign(static_cast<std::size_t>(versions.back().end), 2);
  r.logprobs.assign(r.completion_ids.size(), -1.0F);
  r.versions = std::move(versions);
  r.rewards = {{"exact_match", reward}};
  return r;
}

// The metrics of a step of two samples whose log-probs the trainer finds off by `difference`, one
// token up, one down.
rl::Metrics step_metrics(double difference, std::vector<bridge::Rollout> rollouts) {
  rl::Config config;
  config.rollout.group_size = 2;
  const auto batch = rl::make_step_batch(rollouts, config);
  const auto advantages =
      rl::step_advantages(batch.columns, batch.rewards, 2, config.algorithm, 0.0);
  engine::Columns entries;
  entries.set("sample", at::tensor(std::vector<int64_t>{0, 1}, at::kLong));
  entries.set("rollout_logprob", at::tensor({-1.0, -1.0}, at::kDouble));
  const at::Tensor logprob = at::tensor({-1.0 + difference, -1.0 - difference}, at::kDouble);
  entries.set("old_logprob", logprob);
  entries.set("advantage", at::tensor({1.0, -1.0}, at::kDouble));
  entries.set("weight", at::ones({2}, at::kDouble));
  entries.set("correction", at::ones({2}, at::kDouble));
  rl::StepUpdates updates;
  rl::Figures figures;
  rl::policy_gradient_loss(logprob, at::zeros({2}, at::kDouble), entries, config.algorithm, {},
                           figures);
  updates.policy.push_back({test::fetched(figures), {}, {}, {}, 1.0});
  rl::TrainingState state;
  state.weight_version = 7;
  return rl::rl_step_metrics(rollouts, batch, advantages, updates, state, config);
}

}  // namespace

TEST_CASE("the mismatch of trainer and rollout engine by its names") {
  const auto metrics =
      step_metrics(0.2, {make_rollout(1, {{7, 0, 1}}), make_rollout(0, {{7, 0, 1}})});
  const double up = std::exp(0.2), down = std::exp(-0.2);
  CHECK(value_of(metrics, "token_mult_prob_error") == Approx(up));
  CHECK(value_of(metrics, "sampling/sampling_logp_difference/max") == Approx(0.2));
  CHECK(value_of(metrics, "rollout_corr/kl") == Approx(0.0).margin(1e-12));
  CHECK(value_of(metrics, "rollout_corr/k3_kl") == Approx((up + down) / 2 - 1));
  CHECK(value_of(metrics, "rollout_corr/chi2_token") == Approx((up * up + down * down) / 2 - 1));
  CHECK(value_of(metrics, "rollout_corr/rollout_is_mean") == Approx((up + down) / 2));
  CHECK(value_of(metrics, "rollout_corr/rollout_is_eff_sample_size") ==
        Approx((up + down) * (up + down) / (2 * (up * up + down * down))));
}

TEST_CASE(
    "mismatch metrics are of every mini-batch of the first pass, and of the applied weights") {
  rl::Config config;
  config.rollout.group_size = 2;
  config.train.num_mini_batches = 2;
  config.algorithm.kl_coef = 0.1;
  const std::vector rollouts{make_rollout(1, {{7, 0, 1}}), make_rollout(0, {{7, 0, 1}})};
  const auto batch = rl::make_step_batch(rollouts, config);
  const auto advantages =
      rl::step_advantages(batch.columns, batch.rewards, 2, config.algorithm, 0.0);
  rl::StepUpdates updates;
  for (const double off : {0.1, 0.3, 5.0}) {  // the third is of the second pass
    rl::StepFigures figures;
    figures.set("tokens", rl::FigureRule::kSum, 1);
    for (const char* name : {"rollout_kl", "rho"}) {
      figures.set(name, rl::FigureRule::kMean, off);
    }
    figures.set("rho_squared", rl::FigureRule::kMean, off * off);
    figures.set("sampling_difference_max", rl::FigureRule::kMax, off);
    updates.policy.push_back({figures, {}, {}, {}, 1.0});
  }
  updates.kl_coef = 0.1;
  rl::TrainingState state;
  state.kl_coef = 0.2;  // of the next step
  const auto raw = rl::rl_step_metrics(rollouts, batch, advantages, updates, state, config);
  CHECK(value_of(raw, "rollout_corr/kl") == Approx(0.2));
  CHECK(value_of(raw, "sampling/sampling_logp_difference/max") == Approx(0.3));
  CHECK(value_of(raw, "rollout_corr/chi2_token") == Approx(0.05 - 1));
  CHECK(value_of(raw, "rollout_corr/rollout_is_mean") == Approx(0.2));
  CHECK(value_of(raw, "actor/kl_coef") == 0.1);
  updates.correction.weight = {1.0, 0.5};
  updates.correction.statistics.rollout_is_mean = 0.75;
  updates.correction.statistics.rollout_is_eff_sample_size = 0.9;
  const auto applied = rl::rl_step_metrics(rollouts, batch, advantages, updates, state, config);
  CHECK(value_of(applied, "rollout_corr/rollout_is_mean") == 0.75);
  CHECK(value_of(applied, "rollout_corr/rollout_is_eff_sample_size") == 0.9);
}

TEST_CASE("staleness goes by each token's own version") {
  const auto metrics =
      step_metrics(0.0, {make_rollout(1, {{4, 0, 1}, {6, 1, 4}}), make_rollout(0, {{7, 0, 4}})});
  CHECK(value_of(metrics, "staleness/max") == 3.0);
  CHECK(value_of(metrics, "staleness/mean") == Approx((3.0 + 3 * 1.0) / 8));
  CHECK(value_of(metrics, "staleness/spans_mean") == 1.5);
  CHECK(value_of(metrics, "rewards/exact_match/mean") == 0.5);
  CHECK(value_of(metrics, "frac_reward_zero_std") == 0.0);
}

TEST_CASE("a step in which only the critic learns has no figures of the policy") {
  rl::Config config;
  config.rollout.group_size = 2;
  const std::vector rollouts{make_rollout(1, {{7, 0, 1}}), make_rollout(0, {{7, 0, 1}})};
  const auto batch = rl::make_step_batch(rollouts, config);
  const auto advantages =
      rl::step_advantages(batch.columns, batch.rewards, 2, config.algorithm, 0.0);
  auto metrics = rl::rl_step_metrics(rollouts, batch, advantages, {}, {}, config);
  CHECK_FALSE(has(metrics, "loss"));
  CHECK_FALSE(has(metrics, "rollout_corr/k3_kl"));
  CHECK(value_of(metrics, "reward") == 0.5);
  CHECK(rl::sequence_metrics({}).size() == 6);
}

TEST_CASE("a figure's sum over four ranks does not depend on the figures beside it") {
  // 1 + 1e16 - 1e16 is 0 or 1, depending on which numbers are added first.
  const std::array<double, 4> of_rank{-1e16, 1.0, 1e16, 1.0};
  std::array<std::vector<double>, 4> found;
  test::run_ranks({1, 1, 4}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const at::Tensor loss =
        at::scalar_tensor(of_rank[mesh.rank()], at::TensorOptions().dtype(at::kDouble));
    for (const int64_t others : {0, 3, 8, 15, 40}) {
      rl::Figures figures;
      for (int64_t i = 0; i < others; ++i) {
        figures.sum("a figure before it " + std::to_string(i), loss);
      }
      figures.sum("loss", loss);
      found[mesh.rank()].push_back(
          rl::StepFigures::reduce(figures.take().fetch(), *comms.control(sp::axes::kLoss))["loss"]);
    }
  });
  for (const std::vector<double>& of_one : found) {
    CHECK(of_one == std::vector<double>(5, found[0][0]));
  }
}
