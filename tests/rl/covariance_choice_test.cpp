// Guards: a choice of tokens that depends on more than the mini-batch and its seed, or that takes
// too few or too many. Oracle: closed forms; PyTorch in policy_objective_test.cpp.
#include "rl/algorithm/covariance_choice.h"

#include <catch2/catch.hpp>
#include <numeric>

using namespace ringside::rl;

namespace {

// 40 tokens whose covariances are 1 and -1 in turn, after 7 tokens of another mini-batch.
StepColumns table_of_40() {
  StepColumns table;
  table.advantage.assign(7, 100.0);
  table.old.assign(7, -100.0);
  for (int i = 0; i < 40; ++i) {
    table.advantage.push_back(i % 4 < 2 ? 1.0 : -1.0);
    table.old.push_back(i % 2 == 0 ? -1.0 : -3.0);
    if (i % 4 >= 2) {
      table.old.back() = i % 2 == 0 ? -3.0 : -1.0;
    }
  }
  return table;
}

AlgorithmConfig config_of(PolicyLossName loss, double ratio) {
  AlgorithmConfig config;
  config.loss = loss;
  config.clip_cov.ratio = config.kl_cov.ratio = ratio;
  config.clip_cov.lb = 0.5;
  return config;
}

double count(const std::vector<double>& chosen) {
  return std::accumulate(chosen.begin(), chosen.end(), 0.0);
}

}  // namespace

TEST_CASE("clip_cov draws its share from the tokens between the bounds, by the seed alone") {
  const StepColumns table = table_of_40();
  const auto config = config_of(PolicyLossName::kClipCov, 0.1);
  const auto covariance = token_covariances(table, {7, 40, 3});
  const auto chosen = choose_by_covariance(table, {7, 40, 3}, config);
  CHECK(count(chosen) == 4);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    CHECK((chosen[i] == 0.0 || covariance[i] == 1.0));
  }
  CHECK(choose_by_covariance(table, {7, 40, 3}, config) == chosen);
  CHECK(choose_by_covariance(table, {7, 40, 4}, config) != chosen);
  // All of the candidates where the share allows more, at least one where it allows none.
  CHECK(count(choose_by_covariance(table, {7, 40, 3}, config_of(PolicyLossName::kClipCov, 1.0))) ==
        20);
  CHECK(count(choose_by_covariance(table, {7, 40, 3}, config_of(PolicyLossName::kClipCov, 0.0))) ==
        1);
}

TEST_CASE("clip_cov chooses none where no covariance is between the bounds") {
  auto config = config_of(PolicyLossName::kClipCov, 1.0);
  config.clip_cov.lb = 1.0;  // not included
  CHECK(count(choose_by_covariance(table_of_40(), {7, 40, 3}, config)) == 0);
  CHECK(choose_by_covariance(table_of_40(), {7, 0, 3}, config).empty());
}

TEST_CASE("kl_cov takes the largest covariances, of equal ones the first") {
  StepColumns table = table_of_40();
  table.advantage[7 + 5] = 9.0;  // old log-prob -3: the smallest covariance
  table.advantage[7 + 8] = 9.0;  // old log-prob -1: the largest
  const auto chosen =
      choose_by_covariance(table, {7, 40, 3}, config_of(PolicyLossName::kKlCov, 0.05));
  CHECK(count(chosen) == 2);
  CHECK(chosen[8] == 1.0);
  CHECK(chosen[5] == 0.0);
  CHECK(count(choose_by_covariance(table, {7, 40, 3}, config_of(PolicyLossName::kKlCov, 0))) == 1);
}

TEST_CASE("another loss chooses no tokens, and a part lies in the table") {
  CHECK_THROWS_WITH(
      choose_by_covariance(table_of_40(), {7, 40, 3}, config_of(PolicyLossName::kPpoClip, 0.1)),
      Catch::Contains("ppo_clip chooses no tokens"));
  CHECK_THROWS_AS(token_covariances(table_of_40(), {8, 40, 3}), std::out_of_range);
}
