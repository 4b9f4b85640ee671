// Guards: an estimate of pass@k that is biased or breaks at its edges; intervals over completions
// instead of prompts. Oracles: all subsets of k samples; the formula of the standard error.
#include "rl/sampling/eval_statistics.h"

#include <bit>
#include <catch2/catch.hpp>
#include <stdexcept>

namespace ringside::rl {
namespace {

// The share of the subsets of k of n samples that hold one that passed (the first `passed` do).
double share_of_subsets(unsigned n, unsigned passed, unsigned k) {
  int subsets = 0;
  int holding = 0;
  for (unsigned set = 0; set < (1U << n); ++set) {
    if (std::popcount(set) == static_cast<int>(k)) {
      ++subsets;
      holding += (set & ((1U << passed) - 1)) != 0 ? 1 : 0;
    }
  }
  return static_cast<double>(holding) / subsets;
}

TEST_CASE("pass@k is the share of subsets of k samples in which one passes") {
  for (unsigned n = 1; n <= 8; ++n) {
    for (unsigned passed = 0; passed <= n; ++passed) {
      for (unsigned k = 1; k <= n; ++k) {
        CAPTURE(n, passed, k);
        CHECK(pass_at_k(n, passed, k) == Approx(share_of_subsets(n, passed, k)).margin(1e-14));
      }
    }
  }
  CHECK(pass_at_k(1024, 1, 512) == Approx(0.5).epsilon(1e-12));
  CHECK_THROWS_AS(pass_at_k(4, 5, 1), std::invalid_argument);
  CHECK_THROWS_AS(pass_at_k(4, 1, 5), std::invalid_argument);
  CHECK_THROWS_AS(pass_at_k(4, 1, 0), std::invalid_argument);
}

TEST_CASE("figures are means over prompts, with the standard error of prompts") {
  const std::vector<PromptResult> results{
      {.rewards = {1, 1, 0}, .lengths = {2, 4, 6}, .truncated = 1},
      {.rewards = {0, 0, 0}, .lengths = {10, 10, 10}, .truncated = 3},
      {.rewards = {1}, .lengths = {1}, .unscored = 2},
      {.unscored = 3}};  // left out
  const auto figures = eval_figures(results, 3);
  REQUIRE(figures.size() == 6);
  CHECK(figures[0].name == "reward");
  CHECK(figures[0].value == Approx((2.0 / 3 + 0 + 1) / 3));
  // Values 2/3, 0, 1 with mean 5/9: s^2 = 19/27 / ... by hand: (1/81 + 25/81 + 16/81) / 2 = 7/27.
  CHECK(figures[0].half_width == Approx(1.959963984540054 * std::sqrt(7.0 / 27 / 3)));
  CHECK(figures[1].name == "pass@1");
  CHECK(figures[1].value == Approx((2.0 / 3 + 0 + 1) / 3));
  CHECK(figures[2].name == "pass@2");  // the prompt with one sample is left out
  CHECK(figures[2].value == Approx((1.0 + 0) / 2));
  CHECK(figures[3].name == "pass@3");
  CHECK(figures[3].value == Approx((1.0 + 0) / 2));
  CHECK(figures[4].name == "length");
  CHECK(figures[4].value == Approx((4.0 + 10 + 1) / 3));
  CHECK(figures[5].name == "truncated");
  CHECK(figures[5].value == Approx((1.0 / 3 + 1 + 0) / 3));
  CHECK(eval_figures(std::vector<PromptResult>{{.unscored = 1}}, 1).empty());
  const auto metrics = eval_metrics(eval_figures(results, 1), {"", "f", "data.eval"});
  CHECK(metrics[0].first == "eval_reward");
  CHECK(metrics[1].first == "eval/reward_ci95");
  CHECK(metrics[2].first == "eval/pass@1");
  const auto named = eval_metrics(eval_figures(results, 1), {"hard", "f", "eval.sets.hard"});
  REQUIRE(named.size() == metrics.size());
  CHECK(named[0].first == "eval/hard/reward");
  CHECK(named[1].first == "eval/hard/reward_ci95");
  CHECK(named[2].first == "eval/hard/pass@1");
  CHECK(named[2].second == metrics[2].second);
}

TEST_CASE("pass@k is absent when no prompt has k scored completions") {
  const std::vector<PromptResult> results{{.rewards = {1, 1}, .lengths = {2, 4}, .unscored = 2},
                                          {.rewards = {1}, .lengths = {1}, .unscored = 3}};
  std::vector<std::string> names;
  for (const EvalFigure& figure : eval_figures(results, 4)) {
    names.push_back(figure.name);
  }
  CHECK(names == std::vector<std::string>{"reward", "pass@1", "pass@2", "length", "truncated"});
}

TEST_CASE("the interval of equal values is exactly 0 wide") {
  // The mean of 7 times 0.1 is not 0.1.
  const std::vector<PromptResult> results(7, {.rewards = {0.1}, .lengths = {3}});
  for (const EvalFigure& figure : eval_figures(results, 1)) {
    CAPTURE(figure.name);
    CHECK(figure.half_width == 0.0);
  }
}

}  // namespace
}  // namespace ringside::rl
