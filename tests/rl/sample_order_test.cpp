// Guards: samples drawn by other weights than the rewards', an order that differs from run to run,
// and a rearranged step whose tokens have another sample's numbers. Oracle: closed forms.
#include "rl/data/sample_order.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>

using namespace ringside::rl;

namespace {

const std::vector<double> kScores{2, -1, 0, 2, 7};
const std::vector<bool> kDrawable{true, true, true, true, false};

// The share of each sample in many draws.
std::vector<double> shares(const ResamplingConfig& config) {
  std::vector<double> counts(kScores.size(), 0.0);
  constexpr int kDraws = 20000;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    for (const int64_t sample : drawn_samples(kScores, kDrawable, config, seed)) {
      counts[static_cast<std::size_t>(sample)] += 1.0 / (kDraws * 5.0);
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("samples are drawn as often as the method's weights say, without those that may not be") {
  const auto [config, weights] = GENERATE(values<std::pair<ResamplingConfig, std::vector<double>>>(
      {{{"pow", 2.0}, {4, 1, 0, 4, 0}},
       {{"pow", 1.0}, {2, 1, 0, 2, 0}},
       {{"max_min", 2.0}, {1, 1, 0, 1, 0}},
       {{"max_random", 2.0}, {4, 1, 1, 4, 0}}}));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto got = shares(config);
  CAPTURE(config.method, config.power);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    CAPTURE(i);
    // Five standard deviations of 100,000 draws; what has no weight is not drawn.
    CHECK(std::abs(got[i] - weights[i] / sum) <= (weights[i] > 0 ? 0.008 : 1e-5));
  }
}

TEST_CASE("the same seed draws the same samples; without a method each is used once") {
  const ResamplingConfig config{"pow", 2.0};
  CHECK(drawn_samples(kScores, kDrawable, config, 5) ==
        drawn_samples(kScores, kDrawable, config, 5));
  CHECK(drawn_samples(kScores, kDrawable, config, 5) !=
        drawn_samples(kScores, kDrawable, config, 6));
  const std::vector<int64_t> all{0, 1, 2, 3, 4};
  CHECK(drawn_samples({}, kDrawable, {}, 5) == all);
  CHECK(drawn_samples(kScores, std::vector<bool>(5, false), config, 5) == all);
  CHECK_THROWS_WITH(drawn_samples({}, kDrawable, config, 5), Catch::Contains("0 scores of 5"));
}

TEST_CASE("a shuffled pass holds the same samples in an order of its seed") {
  std::vector<int64_t> all(100);
  std::iota(all.begin(), all.end(), int64_t{0});
  CHECK(pass_order(all, false, 1) == all);
  const auto first = pass_order(all, true, 1);
  CHECK(first != all);
  CHECK(first == pass_order(all, true, 1));
  CHECK(first != pass_order(all, true, 2));
  CHECK(std::is_permutation(first.begin(), first.end(), all.begin(), all.end()));
}
