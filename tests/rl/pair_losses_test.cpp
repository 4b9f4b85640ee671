// Guards: a derivative that is not the loss's, so that the backward of a weighted sum is another
// gradient; a mean over the wrong count. Oracle: differences of the losses, and their formulas.
#include "rl/algorithm/pair_losses.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

using namespace ringside::rl;
using Catch::Contains;

namespace {

ScoredPairs three_pairs() {
  return {.score = {-3.0, -4.0, -7.5, -2.0, -1.0, -60.0},
          .reference = {-3.5, -3.0, -6.0, -2.5, -20.0, -1.0},
          .tokens = {3, 5, 7, 2, 1, 9}};
}

// Central differences of the summed loss towards each score, against the derivative.
void check_derivative(const ScoredPairs& pairs,
                      const std::function<PairLosses(const ScoredPairs&)>& losses) {
  const PairLosses found = losses(pairs);
  REQUIRE(found.derivative.size() == pairs.score.size());
  constexpr double kStep = 1e-5;
  for (std::size_t d = 0; d < pairs.score.size(); ++d) {
    INFO("document " << d);
    ScoredPairs up = pairs, down = pairs;
    up.score[d] += kStep;
    down.score[d] -= kStep;
    const double slope = (losses(up).figures.loss - losses(down).figures.loss) / (2 * kStep);
    CHECK(found.derivative[d] == Approx(slope).epsilon(1e-7).margin(1e-9));
  }
}

}  // namespace

TEST_CASE("pair losses: derivatives are those of the losses") {
  for (const PreferenceLoss loss :
       {PreferenceLoss::kSigmoid, PreferenceLoss::kIpo, PreferenceLoss::kHinge}) {
    for (const double smoothing : {0.0, 0.2}) {
      const PreferenceConfig config{.loss = loss, .beta = 0.3, .label_smoothing = smoothing};
      check_derivative(three_pairs(),
                       [&](const ScoredPairs& pairs) { return dpo_losses(pairs, config); });
    }
  }
  for (const double center : {0.0, 0.05}) {
    check_derivative({.score = {0.3, -0.2, 1.0, 2.5, -4.0, 30.0}}, [&](const ScoredPairs& pairs) {
      return bradley_terry_losses(pairs, {.center_coef = center});
    });
  }
}

TEST_CASE("pair losses: the formulas, also where exp would overflow") {
  const ScoredPairs one{
      .score = {-3.0, -4.0}, .reference = {-3.5, -3.0}, .tokens = {3, 5}};  // d = 0.5 + 1.0
  const auto loss = [&](const PreferenceConfig& config) {
    return dpo_losses(one, config).figures.loss;
  };
  CHECK(loss({.beta = 2.0}) == Approx(std::log1p(std::exp(-3.0))));
  CHECK(loss({.beta = 2.0, .label_smoothing = 0.25}) ==
        Approx(0.75 * std::log1p(std::exp(-3.0)) + 0.25 * std::log1p(std::exp(3.0))));
  CHECK(loss({.loss = PreferenceLoss::kHinge, .beta = 0.5}) == Approx(0.25));
  CHECK(loss({.loss = PreferenceLoss::kIpo, .beta = 0.5}) ==
        Approx(std::pow(0.5 / 3 + 1.0 / 5 - 1.0, 2)));
  const PairLosses far = bradley_terry_losses({.score = {0.0, 2000.0}}, {});
  CHECK(far.figures.loss == Approx(2000.0));
  CHECK(far.derivative == std::vector<double>{-1.0, 1.0});
}

TEST_CASE("pair losses: weights are means over pairs, and over the chosen tokens") {
  const ScoredPairs pairs = three_pairs();
  const PreferenceConfig config{.beta = 0.1, .sft_coef = 0.5};
  const PairLosses losses = dpo_losses(pairs, config);
  const auto weights = token_weights(pairs, losses, config.sft_coef);
  REQUIRE(weights.size() == 27);
  CHECK(weights[0] == Approx(losses.derivative[0] / 3 - 0.5 / 11));  // 3 + 7 + 1 chosen tokens
  CHECK(weights[3] == Approx(losses.derivative[1] / 3));
  CHECK(weights[26] == Approx(losses.derivative[5] / 3));
  CHECK(losses.figures.total_loss(0.5) ==
        Approx(losses.figures.loss / 3 + 0.5 * (3.0 + 7.5 + 1.0) / 11));
  CHECK(losses.figures.total_loss(0.0) == Approx(losses.figures.loss / 3));
}

TEST_CASE("pair figures: sums of parts are those of the whole") {
  const ScoredPairs pairs = three_pairs();
  PairFigures parts;
  for (std::size_t p = 0; p < 3; ++p) {
    const auto two = [&](const auto& all) {
      return std::decay_t<decltype(all)>(all.begin() + 2 * p, all.begin() + 2 * p + 2);
    };
    parts += dpo_losses({two(pairs.score), two(pairs.reference), two(pairs.tokens)}, {}).figures;
  }
  const PairFigures whole = dpo_losses(pairs, {}).figures;
  CHECK(parts.loss == Approx(whole.loss));
  CHECK(parts.min_reward == whole.min_reward);
  CHECK(parts.max_reward == whole.max_reward);
  CHECK(parts.mean(&PairFigures::correct) == Approx(2.0 / 3.0));
  CHECK(parts.chosen_tokens == 11);
  CHECK(whole.mean(&PairFigures::chosen_reward) == Approx(0.1 * (0.5 - 1.5 + 19.0) / 3));
}

TEST_CASE("pair losses: scores without a partner or a reference are refused") {
  CHECK_THROWS_WITH(bradley_terry_losses({.score = {1.0}}, {}), Contains("two a pair"));
  CHECK_THROWS_WITH(dpo_losses({.score = {1.0, 2.0}}, {}), Contains("two a pair"));
}
