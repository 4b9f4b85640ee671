// Guards: a mismatch alarm that stays silent, that rings at what rounding costs in the trainer's
// dtype, or that repeats itself at every step.
#include "rl/trainer/mismatch_alarms.h"

#include <limits>

#include "tests/support/catch.h"

using namespace ringside;

namespace {

rl::Metrics step(double mult_prob_error, double k3_kl, double staleness = 0) {
  return {{"token_mult_prob_error", mult_prob_error},
          {"rollout_corr/k3_kl", k3_kl},
          {"staleness/max", staleness}};
}

// The sentences of one step.
std::vector<std::string> said(rl::MismatchAlarms& alarms, rl::Metrics metrics) {
  return alarms.add(metrics);
}

double raised(rl::Metrics metrics, const char* name, rl::DType dtype = rl::DType::kFloat32) {
  rl::MismatchAlarms(dtype).add(metrics);
  return rl::find_metric(metrics, name).value();
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("what rounding costs in bfloat16 raises an alarm in float32 alone") {
  const rl::Metrics rounded = step(1.04, 7e-3);
  for (const rl::DType dtype : {rl::DType::kBFloat16, rl::DType::kFloat16}) {
    CHECK(raised(rounded, "alarm/mult_prob_error", dtype) == 0.0);
    CHECK(raised(rounded, "alarm/mismatch_kl", dtype) == 0.0);
    CHECK(raised(step(1.2, 1.2e-2), "alarm/mult_prob_error", dtype) == 1.0);
    CHECK(raised(step(1.2, 1.2e-2), "alarm/mismatch_kl", dtype) == 1.0);
  }
  for (const rl::DType dtype : {rl::DType::kFloat32, rl::DType::kFloat64}) {
    CHECK(raised(rounded, "alarm/mult_prob_error", dtype) == 1.0);
    CHECK(raised(rounded, "alarm/mismatch_kl", dtype) == 1.0);
    CHECK(raised(step(1.001, 1e-6), "alarm/mult_prob_error", dtype) == 0.0);
    CHECK(raised(step(1.001, 1e-6), "alarm/mismatch_kl", dtype) == 0.0);
  }
}

TEST_CASE("a sentence names metric, value, limit and dtype, and where to read on") {
  rl::MismatchAlarms alarms(rl::DType::kBFloat16);
  const auto sentences = said(alarms, step(1.0, 0.25));
  REQUIRE(sentences.size() == 1);
  CHECK_THAT(sentences[0], Catch::Contains("rollout_corr/k3_kl is 0.25, above 0.01") &&
                               Catch::Contains("bfloat16") &&
                               Catch::Contains("recipes/troubleshooting.md"));
}

TEST_CASE(
    "an alarm speaks at its first step, when it has doubled and after 100 steps; it rings on") {
  rl::MismatchAlarms alarms(rl::DType::kFloat32);
  CHECK(said(alarms, step(1.0, 1e-9)).empty());
  CHECK(said(alarms, step(1.0, 1.0)).size() == 1);
  rl::Metrics again = step(1.0, 1.9);
  CHECK(alarms.add(again).empty());
  CHECK(rl::find_metric(again, "alarm/mismatch_kl") == 1.0);
  CHECK(said(alarms, step(1.0, 1e-9)).empty());  // a quiet step between
  CHECK(said(alarms, step(1.0, 1.0)).empty());
  CHECK(said(alarms, step(1.0, 2.1)).size() == 1);  // step 6
  for (int64_t i = 7; i < 6 + rl::MismatchAlarms::kRepeatSteps; ++i) {
    CHECK(said(alarms, step(1.0, 2.0)).empty());
  }
  CHECK(said(alarms, step(1.0, 2.0)).size() == 1);
}

TEST_CASE("the two alarms count for themselves, and NaN is worse than any number") {
  rl::MismatchAlarms alarms(rl::DType::kFloat32);
  CHECK(said(alarms, step(1.0, 1.0)).size() == 1);
  CHECK(said(alarms, step(2.0, 1.0)).size() == 1);
  CHECK(said(alarms, step(kNaN, kNaN)).size() == 2);
  CHECK(said(alarms, step(kNaN, kNaN)).empty());
}

TEST_CASE("samples of older weights and steps without the metrics raise nothing") {
  rl::MismatchAlarms alarms(rl::DType::kFloat32);
  rl::Metrics stale = step(2.0, 1.0, 1.0), none{{"reward", 0.5}};
  CHECK(alarms.add(stale).empty());
  CHECK_FALSE(rl::find_metric(stale, "alarm/mismatch_kl").has_value());
  CHECK(alarms.add(none).empty());
  CHECK(none.size() == 1);
}
