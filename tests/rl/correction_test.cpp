// Guards: a correction weight or mismatch statistic that departs from its formula. Oracle: PyTorch
// fp64 on padded tensors (tests/goldens/advantages.py), closed forms.
#include "rl/algorithm/correction.h"

#include <catch2/catch.hpp>

#include "tests/rl/statistics_goldens.h"

using namespace ringside;
using rl::CorrectionConfig;
using rl::CorrectionLevel;
using rl::CorrectionMode;
using test::distance;

namespace {

template <class E>
E value_of(const std::string& word) {
  const auto& names = rl::EnumNames<E>::kNames;
  return static_cast<E>(std::find(names.begin(), names.end(), word) - names.begin());
}

std::vector<std::pair<std::string, double>> named(const rl::CorrectionStatistics& s) {
  return {{"kl", s.kl},
          {"k3_kl", s.k3_kl},
          {"chi2_token", s.chi2_token},
          {"chi2_seq", s.chi2_seq},
          {"rollout_is_mean", s.rollout_is_mean},
          {"rollout_is_eff_sample_size", s.rollout_is_eff_sample_size},
          {"rollout_is_ratio_fraction_high", s.rollout_is_ratio_fraction_high},
          {"rollout_is_ratio_fraction_low", s.rollout_is_ratio_fraction_low},
          {"rollout_rs_masked_fraction", s.rollout_rs_masked_fraction},
          {"training_ppl", s.training_ppl},
          {"rollout_ppl", s.rollout_ppl},
          {"ppl_ratio", s.ppl_ratio},
          {"token_mult_prob_error", s.token_mult_prob_error}};
}

// Two samples with two tokens and one, the ratios 2, 1/2 and 4, and one without.
rl::StepColumns small_table() {
  return {
      {0, 2, 2, 3}, {-2, -1, -3}, {-2 + std::log(2), -1 - std::log(2), -3 + std::log(4)}, {}, {}};
}

std::vector<double> weights(CorrectionMode mode, CorrectionLevel level) {
  return rl::correction_weights(small_table(),
                                {.mode = mode, .level = level, .low = 0.75, .high = 3})
      .weight;
}

}  // namespace

TEST_CASE("corrections of every mode and level are PyTorch's, with their statistics") {
  for (const auto& golden : test::advantage_goldens()["corrections"]) {
    const CorrectionConfig config{.mode = value_of<CorrectionMode>(golden["mode"]),
                                  .level = value_of<CorrectionLevel>(golden["level"]),
                                  .low = golden["low"],
                                  .high = golden["high"],
                                  .token_high = golden.value("token_high", 0.0),
                                  .reject = golden.value("reject", nlohmann::json::array()).dump(),
                                  .normalize = golden.value("normalize", false)};
    const auto got = rl::correction_weights(test::golden_table(golden["batch"]), config);
    CAPTURE(golden["batch"].dump(), golden["mode"].dump(), golden["level"].dump(), config.low);
    CAPTURE(config.reject, config.normalize);
    CHECK(distance(got.weight, golden["weight"]) < 1e-12);
    CHECK(got.kept == golden["kept"].get<std::vector<bool>>());
    CHECK(named(got.statistics).size() == golden["statistics"].size());
    for (const auto& [name, value] : named(got.statistics)) {
      CAPTURE(name, value, golden["statistics"][name].get<double>());
      CHECK(distance({value}, {golden["statistics"][name].get<double>()}) < 1e-12);
    }
  }
}

TEST_CASE("each mode keeps, bounds or drops what it says") {
  const auto token = CorrectionLevel::kToken;
  CHECK(distance(weights(CorrectionMode::kNone, token), {1, 1, 1}) < 1e-12);
  CHECK(distance(weights(CorrectionMode::kTis, token), {2, 0.75, 3}) < 1e-12);
  CHECK(distance(weights(CorrectionMode::kIcepop, token), {2, 0, 0}) < 1e-12);
  CHECK(distance(weights(CorrectionMode::kMask, token), {1, 0, 0}) < 1e-12);
  // The first sample's geometric mean is 1, so its tokens keep their own ratios, one of them out of
  // bounds.
  CHECK(distance(weights(CorrectionMode::kSeqMaskTis, token), {2, 0.5, 0}) < 1e-12);
  CHECK(distance(weights(CorrectionMode::kIcepop, CorrectionLevel::kSequence), {1, 1, 0}) < 1e-12);
  CHECK(distance(weights(CorrectionMode::kTis, CorrectionLevel::kGeometric), {1, 1, 3}) < 1e-12);
}

TEST_CASE("a dropped token has no weight, and its sample's mean is over the others") {
  rl::StepColumns table = small_table();  // two samples of two tokens and one, and one without
  table.weight = {0.25, 0.25, 0.5};
  rl::StepColumns untouched = table;
  rl::drop_rejected(untouched, rl::LossAggregation::kSeqMeanTokenMean);
  CHECK(untouched.weight == table.weight);
  table.kept = {1, 0, 0};
  rl::StepColumns by_token = table;
  rl::drop_rejected(by_token, rl::LossAggregation::kTokenMean);
  CHECK(by_token.weight == std::vector<double>{0.25, 0, 0});
  rl::drop_rejected(table, rl::LossAggregation::kSeqMeanTokenMean);
  CHECK(table.weight == std::vector<double>{0.5, 0, 0});
  table.kept.pop_back();
  CHECK_THROWS_WITH(rl::drop_rejected(table, rl::LossAggregation::kTokenMean),
                    Catch::Contains("2 flags for the weights of 3 loss tokens"));
}

TEST_CASE("two policies that agree need no correction; neither does a step without loss tokens") {
  rl::StepColumns same = small_table();
  same.rollout = same.old;
  const CorrectionConfig config{.mode = CorrectionMode::kIcepop,
                                .level = CorrectionLevel::kSequence,
                                .low = 0.9,
                                .high = 1.1};
  for (const rl::StepColumns& table : {same, rl::StepColumns{{0, 0, 0}, {}, {}, {}, {}}}) {
    const auto result = rl::correction_weights(table, config);
    CHECK(result.weight == std::vector<double>(table.old.size(), 1.0));
    CHECK(result.statistics.kl == 0.0);
    CHECK(result.statistics.k3_kl == 0.0);
    CHECK(result.statistics.chi2_seq == 0.0);
    CHECK(result.statistics.rollout_is_eff_sample_size == 1.0);
    CHECK(result.statistics.ppl_ratio == 1.0);
    CHECK(result.statistics.token_mult_prob_error == 1.0);
    CHECK(result.statistics.rollout_rs_masked_fraction == 0.0);
  }
}

TEST_CASE("what cannot be corrected is said, naming the sample") {
  rl::StepColumns table = small_table();
  CHECK_THROWS_WITH(rl::correction_weights(table, {.low = 2, .high = 1}),
                    Catch::Contains("2.000000 to 1.000000"));
  CHECK_THROWS_WITH(rl::correction_weights(table, {.mode = CorrectionMode::kSeqMaskTis,
                                                   .level = CorrectionLevel::kSequence}),
                    Catch::Contains("level token, got sequence"));
  table.rollout[2] = std::nan("");
  CHECK_THROWS_WITH(rl::correction_weights(table, {}),
                    Catch::Contains("rollout of sample 2 is nan at loss token 2"));
  table.rollout.pop_back();
  CHECK_THROWS_WITH(rl::correction_weights(table, {}),
                    Catch::Contains("rollout has 2 numbers for 3 loss tokens"));
}
