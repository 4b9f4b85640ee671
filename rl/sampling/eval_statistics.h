// Statistics of an evaluation: mean reward, pass@k, lengths, each with a confidence interval.
// Torch-free. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rl/config/eval_sets.h"
#include "rl/report/metrics.h"

namespace ringside::rl {

// A completion passes if its reward is above this.
inline constexpr double kPassReward = 0.5;

// The scored completions of one prompt.
struct PromptResult {
  std::vector<double> rewards{};   // weighted totals of completions with a reward
  std::vector<int64_t> lengths{};  // of the same completions, in tokens
  int64_t truncated = 0;           // of these, ended by length
  int64_t unscored = 0;            // completions whose reward was unavailable
};

// The unbiased estimate of the probability that one of k completions passes, of which `passed` of
// n samples did: 1 - C(n - passed, k) / C(n, k).
// Throws: std::invalid_argument unless 0 <= passed <= n and 1 <= k <= n.
// Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1.
double pass_at_k(int64_t n, int64_t passed, int64_t k);

struct EvalFigure {
  std::string name;    // reward, pass@1, pass@2, pass@4, ..., length, truncated
  double value = 0.0;  // mean over the prompts of each prompt's own mean or estimate
  // Half the width of the 95 % interval by the normal approximation: 1.96 standard errors of the
  // mean over prompts. Completions of one prompt are not independent, so prompts are what is
  // counted. 0 for fewer than two prompts.
  double half_width = 0.0;
};

// The figures in this order: reward; pass@k for k = 1, 2, 4, ... below `samples`, and `samples`;
// length; truncated (share of completions). A prompt without a scored completion is left out. A
// prompt with fewer scored completions than k is left out of that pass@k, which is absent if none
// is left.
// samples: completions per prompt. Empty if no prompt has a scored completion.
std::vector<EvalFigure> eval_figures(std::span<const PromptResult> results, int64_t samples);

// The figures as metrics of a training step, named by EvalSet::metric: reward, pass@1 and so on,
// and reward_ci95, the half width of the reward's interval.
Metrics eval_metrics(const std::vector<EvalFigure>& figures, const EvalSet& set);

}  // namespace ringside::rl
