// Guards: a correction of the rollout's mismatch that is computed, logged and never reaches the
// gradient; a corrected gradient that is biased. Oracle: the exact gradient of an expectation over
// an enumerable bandit.
#include <cmath>
#include <random>

#include "rl/algorithm/correction.h"
#include "rl/step/update_loss.h"
#include "tests/rl/formula_config.h"
#include "tests/support/catch.h"

using namespace ringside;

namespace {

constexpr double kSamplerTemperature = 1.2;
constexpr int64_t kPulls = 10000;

rl::AlgorithmConfig correction_config(const std::vector<std::string>& words) {
  return test::formula_config(words).algorithm;
}

// Pulls of a bandit with one logit an arm: the policy is softmax(logits), the sampler
// softmax(logits / 1.2), whose true log-probs are recorded.
struct Bandit {
  at::Tensor logits = at::tensor({1.5, -0.5, 0.3, 2.2, -1.8, 0.9}, at::kDouble);
  at::Tensor reward = at::tensor({0.2, 1.0, 0.0, 0.4, 3.0, -0.5}, at::kDouble);
  at::Tensor arm;  // [pulls]

  explicit Bandit(uint64_t seed) {
    const at::Tensor p = at::softmax(logits / kSamplerTemperature, 0);
    std::mt19937_64 generator(seed);
    std::discrete_distribution<int64_t> draw(p.const_data_ptr<double>(),
                                             p.const_data_ptr<double>() + p.size(0));
    std::vector<int64_t> arms;
    for (int64_t i = 0; i < kPulls; ++i) {
      arms.push_back(draw(generator));
    }
    arm = at::tensor(arms, at::kLong);
  }

  at::Tensor logprob(double temperature) const {
    return at::log_softmax(logits / temperature, 0).index_select(0, arm);
  }

  // d E[reward] / d logits.
  at::Tensor exact_gradient() const {
    const at::Tensor p = at::softmax(logits, 0);
    return p * (reward - (p * reward).sum());
  }
};

std::vector<double> values_of(const at::Tensor& t) {
  return {t.const_data_ptr<double>(), t.const_data_ptr<double>() + t.numel()};
}

// Each pull as a sample of one token, [pulls, arms]: what it adds to minus the gradient of the
// loss.
at::Tensor gradient_of_pulls(const Bandit& bandit, const rl::AlgorithmConfig& config) {
  rl::StepColumns table;
  for (int64_t i = 0; i <= kPulls; ++i) {
    table.begin.push_back(i);
  }
  table.rollout = values_of(bandit.logprob(kSamplerTemperature));
  table.old = values_of(bandit.logprob(1.0));
  engine::Columns entries;
  entries.set("sample", at::arange(kPulls, at::kLong));
  entries.set("rollout_logprob", bandit.logprob(kSamplerTemperature));
  const bool bypass = config.old_logprobs == rl::OldLogprobs::kRollout;
  entries.set("old_logprob", bandit.logprob(bypass ? kSamplerTemperature : 1.0));
  entries.set("advantage", bandit.reward.index_select(0, bandit.arm));
  entries.set("weight", at::ones({kPulls}, at::kDouble));
  entries.set("correction",
              at::tensor(rl::correction_weights(table, config.correction).weight, at::kDouble));
  const at::Tensor logits =
      bandit.logits.expand({kPulls, bandit.logits.size(0)}).clone().requires_grad_();
  const at::Tensor logprob =
      at::log_softmax(logits, 1).gather(1, bandit.arm.unsqueeze(1)).squeeze(1);
  rl::LossContext context;
  context.num_sequences = kPulls;
  rl::Figures figures;
  rl::policy_gradient_loss(logprob, at::zeros({kPulls}, at::kDouble), entries, config, context,
                           figures)
      .backward();
  return -logits.grad();
}

// The largest |z| over the arms of the mean over pulls against the exact gradient.
double worst_z(const at::Tensor& gradients, const at::Tensor& exact) {
  const at::Tensor error = gradients.std(0) / std::sqrt(static_cast<double>(kPulls));
  return ((gradients.mean(0) - exact) / error).abs().max().item<double>();
}

}  // namespace

TEST_CASE("the corrected gradient of a bandit is unbiased, the uncorrected one is not") {
  const Bandit bandit(7);
  for (const std::string loss : {"reinforce", "ppo_clip"}) {
    CAPTURE(loss);
    for (const std::string level :
         {"token", "sequence", "geometric"}) {  // of one token they are the same
      const auto corrected = correction_config(
          {"algorithm.loss=" + loss, "algorithm.correction.mode=tis",
           "algorithm.correction.level=" + level, "algorithm.correction.high=1000"});
      CHECK(worst_z(gradient_of_pulls(bandit, corrected), bandit.exact_gradient()) < 3.5);
    }
    const auto uncorrected = correction_config({"algorithm.loss=" + loss});
    CHECK(worst_z(gradient_of_pulls(bandit, uncorrected), bandit.exact_gradient()) > 8.0);
  }
  // Bypass: the ratio itself is taken against the sampler, wide open.
  const auto bypass = correction_config(
      {"algorithm.old_logprobs=rollout", "algorithm.clip_low=1", "algorithm.clip_high=1000"});
  CHECK(worst_z(gradient_of_pulls(bandit, bypass), bandit.exact_gradient()) < 3.5);
}

TEST_CASE("each correction changes the gradient, and differs from the others") {
  const Bandit bandit(8);
  const auto gradient = [&](std::vector<std::string> words) {
    words.push_back("algorithm.correction.low=0.8");
    words.push_back("algorithm.correction.high=1.1");
    return gradient_of_pulls(bandit, correction_config(words)).mean(0);
  };
  std::vector<at::Tensor> seen{gradient({})};
  for (const std::string mode : {"tis", "icepop", "mask"}) {
    seen.push_back(gradient({"algorithm.correction.mode=" + mode}));
  }
  seen.push_back(gradient({"algorithm.correction.opsm_delta=0.05"}));
  seen.push_back(gradient({"algorithm.old_logprobs=rollout"}));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      CAPTURE(i, j);
      CHECK((seen[i] - seen[j]).norm().item<double>() > 0.01 * seen[0].norm().item<double>());
    }
  }
  // A sample of one token has the same ratio at every level; seq_mask_tis then is icepop.
  CHECK((gradient({"algorithm.correction.mode=seq_mask_tis"}) - seen[2]).norm().item<double>() <
        1e-12);
}
