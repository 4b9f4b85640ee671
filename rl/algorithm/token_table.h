// The loss tokens of a step as plain columns, what advantages and corrections are computed on. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ringside::rl {

// Samples one after the other, the same on every rank. A sample may have no loss token. B = samples, N = loss tokens. All
// log-probs are natural logarithms.
struct TokenTable {
  std::vector<int64_t> begin;     // [B + 1] first loss token of each sample, and N
  std::vector<double> rollout;    // [N] log-prob under the policy that sampled
  std::vector<double> old;        // [N] under the policy at the beginning of the step
  std::vector<double> reference;  // [N] under the reference policy; empty where nothing asks for it
  std::vector<double> value;      // [N] the critic's; empty where nothing asks for it
  std::vector<double> given;      // [N] advantages that came with the rollouts; empty unless the estimator is given

  int64_t samples() const { return begin.empty() ? 0 : static_cast<int64_t>(begin.size()) - 1; }
  int64_t tokens() const { return begin.empty() ? 0 : begin.back(); }
};

// Throws std::invalid_argument unless begin starts at 0 and never falls. `who` begins the message here and below.
void check_samples(const TokenTable& table, std::string_view who);

// Throws std::invalid_argument unless `column` has one finite number a loss token; names the column and the first sample at
// fault.
void check_column(const TokenTable& table, const std::vector<double>& column, std::string_view name,
                  std::string_view who);

}  // namespace ringside::rl
