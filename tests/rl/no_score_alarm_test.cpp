// Guards the end of a run whose reward fails: silent training on nothing, or an end at one bad
// step.
#include "rl/report/no_score_alarm.h"

#include <catch2/catch.hpp>

using namespace ringside;
using Catch::Contains;

TEST_CASE("a step without a score raises an alarm that says why, and again at twice as many") {
  rl::NoScoreAlarm alarm(/*max_steps=*/0);
  rl::Metrics metrics;
  CHECK(alarm.add(metrics, /*has_score=*/true, "").empty());
  CHECK(metrics == rl::Metrics{{"alarm/no_score", 0.0}});
  const auto said = alarm.add(metrics, false, "no server");
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Contains("no sample of the last step has a score: no server"));
  CHECK(metrics.back() == std::pair<std::string, double>{"alarm/no_score", 1.0});
  CHECK(alarm.add(metrics, false, "").size() == 1);
  CHECK(alarm.add(metrics, false, "").empty());
  CHECK_THAT(alarm.add(metrics, false, "")[0], Contains("last 4 steps"));
  CHECK_FALSE(alarm.end());
}

TEST_CASE("a run in which no step had a score has learned nothing") {
  rl::NoScoreAlarm alarm(/*max_steps=*/3);
  rl::Metrics metrics;
  alarm.add(metrics, /*has_score=*/false, "no server");
  const rl::MetricsLine before_training{0, {{"eval_reward", 0.5}}};
  const rl::MetricsLine unscored{1, {{"alarm/no_score", 1.0}}};
  const rl::MetricsLine scored{2, {{"reward", 0.0}, {"alarm/no_score", 0.0}}};
  using Lines = std::vector<rl::MetricsLine>;
  const auto found = alarm.nothing_learned(Lines{before_training, unscored, unscored});
  REQUIRE(found);
  CHECK_THAT(*found, Contains("no sample of any step has a score (2 steps): no server"));
  CHECK(alarm.may_end_run());
  CHECK_FALSE(alarm.nothing_learned(Lines{before_training, unscored, scored}));
  CHECK_FALSE(alarm.nothing_learned(Lines{before_training}));
  CHECK_FALSE(rl::NoScoreAlarm(/*max_steps=*/0).may_end_run());
}

TEST_CASE(
    "so many steps in a row without a score end the run, and one score starts the count anew") {
  rl::NoScoreAlarm alarm(/*max_steps=*/2);
  rl::Metrics metrics;
  alarm.add(metrics, false, "first");
  CHECK_FALSE(alarm.end());
  alarm.add(metrics, true, "");
  alarm.add(metrics, false, "second");
  CHECK_FALSE(alarm.end());
  alarm.add(metrics, false, "third");
  REQUIRE(alarm.end());
  CHECK_THAT(*alarm.end(), Contains("last 2 steps") && Contains("third") &&
                               Contains("rollout.max_steps_without_score"));
}
