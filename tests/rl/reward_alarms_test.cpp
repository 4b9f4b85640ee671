// Guards the two alarms of a run that learns nothing: silent for ever, or crying where something is
// learnt.
#include "rl/report/reward_alarms.h"

#include <catch2/catch.hpp>

using namespace ringside;

namespace {

struct Step {
  std::vector<double> score;
  std::vector<double> advantage;
};

const Step kZero{{0, 0, 0, 0}, {0, 0}};
const Step kEqual{{1, 1, 0, 0}, {0, 0}};
const Step kTaught{{1, 0, 0, 0}, {0.5, -0.5}};
const Step kEqualButTaught{{1, 1, 0, 0}, {0.5, -0.5}};  // an estimator that knows no groups

std::vector<std::string> run(rl::RewardAlarms& alarms, const Step& step, int times,
                             rl::Metrics* metrics = nullptr) {
  rl::SampleRewards rewards;
  rewards.names = {"exact_match"};
  std::vector<std::string> all;
  for (int i = 0; i < times; ++i) {
    rl::Metrics own;
    const auto said = alarms.add(own, rewards, step.score, step.advantage, 2);
    all.insert(all.end(), said.begin(), said.end());
    if (metrics != nullptr) {
      *metrics = own;
    }
  }
  return all;
}

}  // namespace

TEST_CASE(
    "five steps of zero reward raise an alarm that names the keys; it repeats at 10, 20, ...") {
  rl::RewardAlarms alarms;
  rl::Metrics metrics;
  CHECK(run(alarms, kZero, 4, &metrics).empty());
  CHECK(metrics == rl::Metrics{{"alarm/zero_reward", 0.0}, {"alarm/equal_rewards", 0.0}});
  const auto said = run(alarms, kZero, 1, &metrics);
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Catch::Contains("all rewards are 0 for 5 steps") &&
                          Catch::Contains("data.answer_key"));
  CHECK(metrics == rl::Metrics{{"alarm/zero_reward", 1.0}, {"alarm/equal_rewards", 0.0}});
  CHECK(run(alarms, kZero, 4).empty());
  CHECK(run(alarms, kZero, 1).size() == 1);   // 10
  CHECK(run(alarms, kZero, 30).size() == 2);  // 20 and 40
  CHECK(run(alarms, kTaught, 1, &metrics).empty());
  CHECK(metrics == rl::Metrics{{"alarm/zero_reward", 0.0}, {"alarm/equal_rewards", 0.0}});
  CHECK(run(alarms, kZero, 4).empty());  // counted anew
}

TEST_CASE(
    "equal rewards ring where no advantage is left, and not where an estimator still learns from "
    "them") {
  rl::RewardAlarms alarms;
  rl::Metrics metrics;
  CHECK(run(alarms, kEqual, 4).empty());
  const auto said = run(alarms, kEqual, 1, &metrics);
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Catch::Contains("every group's rewards are equal for 5 steps: no gradient") &&
                          Catch::Contains("algorithm.dynamic_sampling=refill"));
  CHECK(metrics == rl::Metrics{{"alarm/zero_reward", 0.0}, {"alarm/equal_rewards", 1.0}});
  rl::RewardAlarms others;
  CHECK(run(others, kEqualButTaught, 20).empty());
  CHECK(run(others, {{1, 1, 0, 0}, {}}, 5).size() == 1);  // all groups dropped: no token is left
}

TEST_CASE("advantages that come without rewards ring nothing") {
  rl::RewardAlarms alarms;
  rl::Metrics metrics;
  for (int i = 0; i < 10; ++i) {
    CHECK(alarms.add(metrics, {}, std::vector<double>{0, 0}, std::vector<double>{1, 1}, 1).empty());
  }
  CHECK(metrics.empty());
}
