// Per-token columns of a step: the one host table that holds log-probs, advantages and weights of
// the loss tokens. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ringside::rl {

// Ids of a set for each loss token, one set after another.
struct TokenSets {
  std::vector<int64_t> begin{};  // [N + 1] first id of each set, and their number; empty: no sets
  std::vector<int32_t> ids{};

  bool any() const { return !begin.empty(); }
  // Adds a set.
  void add(std::span<const int32_t> set);
  // Adds the sets of the tokens [first, end) of other sets.
  void add(const TokenSets& from, int64_t first, int64_t end);
};

// Samples follow each other in the same order on every rank. A sample may have no loss token. All
// log-probs are natural logarithms. A column that nothing reads is empty. The columns that a pass
// over micro-batches fills (old, reference, teacher, value, squares) hold this rank's own tokens
// and 0 elsewhere until merge_columns() is called. Shapes: B = samples, N = loss tokens.
struct StepColumns {
  std::vector<int64_t> begin{};       // [B + 1] first loss token of each sample, and N
  std::vector<double> rollout{};      // [N] log-prob under the policy that sampled
  std::vector<double> old{};          // [N] log-prob under the policy at the start of the step
  std::vector<double> reference{};    // [N] log-prob under the reference policy
  std::vector<double> value{};        // [N] value of the critic
  std::vector<double> given{};        // [N] advantages that came with the rollouts
  std::vector<double> temperature{};  // [N] sampling temperature
  std::vector<double> advantage{};    // [N]
  std::vector<double> returns{};      // [N] targets of the critic
  // [N] factor of the policy term for the mismatch of trainer and rollout engine
  std::vector<double> correction{};
  // [N] 1 for tokens that the loss treats apart (PolicyLoss::choose), else 0
  std::vector<double> chosen{};
  // [N] holds the aggregation and the global denominator; fixed before any backward
  std::vector<double> weight{};
  // [N] 0 for rejected tokens that have no term of any kind, else 1; empty = all have
  std::vector<double> kept{};
  // [N] sum over the vocabulary of the squared probabilities under the old policy
  std::vector<double> squares{};
  std::vector<double> teacher{};  // [N] log-prob under the teacher
  // Ids that the sampler could have drawn; rollout, old and the current policy's log-probs are over
  // them, reference over the whole vocabulary. Without sets all are over the whole vocabulary.
  TokenSets kept_sets{};

  int64_t samples() const { return begin.empty() ? 0 : static_cast<int64_t>(begin.size()) - 1; }
  int64_t tokens() const { return begin.empty() ? 0 : begin.back(); }
};

// Throws std::invalid_argument unless begin starts at 0 and never falls. The message starts with
// `who`, here and below.
void check_samples(const StepColumns& table, std::string_view who);

// Throws std::invalid_argument unless `column` has one finite number per loss token. Names the
// column and the first sample at fault.
void check_column(const StepColumns& table, const std::vector<double>& column,
                  std::string_view name, std::string_view who);

}  // namespace ringside::rl
