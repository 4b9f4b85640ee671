// Guards: a policy loss or KL estimate that departs from its formula, in value or gradient. Oracles: PyTorch fp64
// (tests/goldens/policy_losses.py), finite differences, closed forms.
#include "rl/algorithm/policy_objective.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rl/config/load.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"

using namespace ringside;
using ringside::test::max_abs_diff;

namespace {

const nlohmann::json& goldens() {
  static const auto json = nlohmann::json::parse(std::ifstream(RINGSIDE_GOLDENS "/policy_losses.json"));
  return json;
}

at::Tensor column(const nlohmann::json& values) { return at::tensor(values.get<std::vector<double>>(), at::kDouble); }

// The algorithm of a case, through the words of a recipe.
rl::AlgorithmConfig config_of(const nlohmann::json& keys) {
  std::vector<std::string> words;
  for (const auto& [key, value] : keys.items()) {
    words.push_back("algorithm." + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return rl::load_config_or_throw({}, words).algorithm;
}

struct Tokens {
  at::Tensor logprob = column(goldens()["logprob"]).requires_grad_();
  at::Tensor old = column(goldens()["old"]);
  at::Tensor reference = column(goldens()["reference"]);
  at::Tensor advantage = column(goldens()["advantage"]);
};

// The gradient is that of a sum whose weights differ by token.
void check_golden(const at::Tensor& values, const Tokens& tokens, const nlohmann::json& golden) {
  CHECK(max_abs_diff(values.detach(), column(golden["value"])) < 1e-12);
  (values * at::linspace(0.5, 1.5, values.size(0), at::kDouble)).sum().backward();
  CHECK(max_abs_diff(tokens.logprob.grad(), column(golden["gradient"])) < 1e-12);
}

}  // namespace

TEST_CASE("every policy loss equals its transcription in PyTorch, value and gradient") {
  CHECK(goldens()["losses"].size() == 10);
  for (const auto& golden : goldens()["losses"]) {
    CAPTURE(golden["name"].get<std::string>());
    const Tokens tokens;
    const auto config = config_of(golden["keys"]);
    check_golden(rl::policy_objective({tokens.logprob, tokens.old, tokens.advantage}, config), tokens, golden);
  }
}

TEST_CASE("every KL estimate equals its transcription in PyTorch, value and gradient") {
  CHECK(goldens()["kl"].size() == rl::EnumNames<rl::KlEstimator>::kNames.size());
  for (const auto& golden : goldens()["kl"]) {
    CAPTURE(golden["name"].get<std::string>());
    const Tokens tokens;
    const auto config = config_of({{"kl_estimator", golden["name"]}});
    check_golden(rl::kl_estimate(tokens.logprob, tokens.reference, tokens.old, config.kl_estimator), tokens, golden);
  }
}

TEST_CASE("gradients that are true derivatives equal finite differences") {
  // cispo, dppo_tv and the straight-through estimates hold parts of themselves fixed: theirs are not.
  for (const auto& golden : goldens()["losses"]) {
    const auto config = config_of(golden["keys"]);
    if (config.loss == rl::PolicyLossName::kCispo || config.loss == rl::PolicyLossName::kDppoTv) {
      continue;
    }
    CAPTURE(golden["name"].get<std::string>());
    const Tokens tokens;
    CHECK(test::worst_gradient_error(
              [&] { return rl::policy_objective({tokens.logprob, tokens.old, tokens.advantage}, config).sum(); },
              {tokens.logprob}) < 1e-8);
  }
  for (const auto estimator : {rl::KlEstimator::kK1, rl::KlEstimator::kAbs, rl::KlEstimator::kK2,
                               rl::KlEstimator::kK3, rl::KlEstimator::kK3Unbiased}) {
    CAPTURE(rl::to_string(estimator));
    const Tokens tokens;
    CHECK(test::worst_gradient_error(
              [&] { return rl::kl_estimate(tokens.logprob, tokens.reference, tokens.old, estimator).sum(); },
              {tokens.logprob}) < 1e-8);
  }
}

TEST_CASE("clipping reproduces the golden numbers: dual clip 3, two-sided 4") {
  const auto loss_at = [](double advantage, double ratio, const rl::AlgorithmConfig& config) {
    const at::Tensor old = at::zeros({1}, at::kDouble);
    return rl::policy_objective({at::full({1}, std::log(ratio), at::kDouble), old, at::full({1}, advantage, at::kDouble)},
                                config)
        .item<double>();
  };
  rl::AlgorithmConfig config;
  config.dual_clip = 3.0;
  CHECK(loss_at(-1, 5, config) == Approx(3.0));
  CHECK(loss_at(-1, 1.5, config) == Approx(1.5));
  CHECK(loss_at(1, 1.5, config) == Approx(-1.2));
  config.dual_clip = 0.0;
  config.delta = 4.0;
  CHECK(loss_at(-1, 5, config) == Approx(4.0));
  CHECK(loss_at(-1, 1.5, config) == Approx(1.5));
}

TEST_CASE("no token at all still has a gradient path, for every loss") {
  for (std::size_t i = 0; i < rl::EnumNames<rl::PolicyLossName>::kNames.size(); ++i) {
    rl::AlgorithmConfig config;
    config.loss = static_cast<rl::PolicyLossName>(i);
    const at::Tensor logprob = at::empty({0}, at::kDouble).requires_grad_();
    const at::Tensor none = at::empty({0}, at::kDouble);
    rl::policy_objective({logprob, none, none}, config).sum().backward();
    CHECK(logprob.grad().numel() == 0);
  }
}
