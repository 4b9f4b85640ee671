// Guards: a choice of tokens that depends on more than the mini-batch and its seed, or that takes
// too few or too many. Oracle: closed forms; PyTorch in policy_objective_test.cpp.
#include "rl/losses/covariance.h"

#include <catch2/catch.hpp>
#include <numeric>

using namespace ringside::rl;

namespace {

// 40 tokens whose covariances are 1 and -1 in turn, after 7 tokens of another mini-batch.
struct CovarianceTokens {
  std::vector<double> advantage, old;

  CovarianceTokens() {
    for (int i = 0; i < 40; ++i) {
      advantage.push_back(i % 4 < 2 ? 1.0 : -1.0);
      old.push_back((i % 2 == 0) == (i % 4 < 2) ? -1.0 : -3.0);
    }
  }
  ChoicePart part(uint64_t seed) const { return {advantage, old, 7, seed}; }
};

// What the loss chooses with these keys.
std::vector<double> choose(const char* name, const ChoicePart& part, double ratio,
                           double lb = 0.5) {
  const PolicyLoss& loss = policy_loss(name);
  LossValues values;
  values.at("clip_cov.ratio") = values.at("kl_cov.ratio") = ratio;
  values.at("clip_cov.lb") = lb;
  return loss.choose(part, {0.2, 0.2, loss.block(), values});
}

double count(const std::vector<double>& chosen) {
  return std::accumulate(chosen.begin(), chosen.end(), 0.0);
}

}  // namespace

TEST_CASE("clip_cov draws its share from the tokens between the bounds, by the seed alone") {
  const CovarianceTokens tokens;
  const auto covariance = token_covariances(tokens.part(3));
  const auto chosen = choose("clip_cov", tokens.part(3), 0.1);
  CHECK(count(chosen) == 4);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    CHECK((chosen[i] == 0.0 || covariance[i] == 1.0));
  }
  CHECK(choose("clip_cov", tokens.part(3), 0.1) == chosen);
  CHECK(choose("clip_cov", tokens.part(4), 0.1) != chosen);
  // All of the candidates where the share allows more, at least one where it allows none.
  CHECK(count(choose("clip_cov", tokens.part(3), 1.0)) == 20);
  CHECK(count(choose("clip_cov", tokens.part(3), 0.0)) == 1);
}

TEST_CASE("clip_cov chooses none where no covariance is between the bounds") {
  CHECK(count(choose("clip_cov", CovarianceTokens().part(3), 1.0, /*lb=*/1.0)) ==
        0);  // not included
  CHECK(choose("clip_cov", {}, 1.0).empty());
}

TEST_CASE("kl_cov takes the largest covariances, of equal ones the first") {
  CovarianceTokens tokens;
  tokens.advantage[5] = 9.0;  // old log-prob -3: the smallest covariance
  tokens.advantage[8] = 9.0;  // old log-prob -1: the largest
  const auto chosen = choose("kl_cov", tokens.part(3), 0.05);
  CHECK(count(chosen) == 2);
  CHECK(chosen[8] == 1.0);
  CHECK(chosen[5] == 0.0);
  CHECK(count(choose("kl_cov", tokens.part(3), 0)) == 1);
}

TEST_CASE("covariances of columns of different lengths are an error") {
  const std::vector<double> two{1, 2}, one{1};
  CHECK_THROWS_AS(token_covariances({two, one}), std::invalid_argument);
}
