#include "rl/step/policy_update.h"

#include <ATen/ATen.h>

#include "sp/mesh/control.h"

namespace ringside::rl {
namespace {

double ratio(double whole, double part) { return part > 0 ? whole / part : 1.0; }

// Figures of this rank -> figures of the world. Sequence-parallel ranks hold disjoint entries, so
// nothing is counted twice.
UpdateResult reduce(const LossSums& local, const engine::SequenceWork& work,
                    sp::Communicator& control) {
  const auto sums = sp::sum_scalars(local.additive(), control);
  const auto done = sp::sum_scalars({work.raw_tokens, work.unique_tokens, work.raw_pairs,
                                     work.unique_pairs, work.predicted_bytes, work.sent_bytes},
                                    control);
  const auto highest = sp::max_scalars(
      {local.sampling_difference_max, work.balance_tokens_max, work.balance_pairs_max}, control);
  UpdateResult result;
  result.sums = LossSums::from(sums, highest[0]);
  result.sequence = {
      ratio(done[0], done[1]), ratio(done[2], done[3]), done[4], done[5], highest[1], highest[2]};
  return result;
}

}  // namespace

double token_mean(const std::vector<UpdateResult>& updates, double LossSums::*sum) {
  double total = 0.0;
  double tokens = 0.0;
  for (const UpdateResult& update : updates) {
    total += update.sums.*sum;
    tokens += update.sums.tokens;
  }
  return tokens > 0.0 ? total / tokens : 0.0;
}

UpdateResult update_policy(engine::ModelRunner& policy, std::span<const engine::ModelInput> inputs,
                           const LossFunction& loss, StepSize size, sp::Communicator& control) {
  LossSums sums;
  const auto work = policy.train(inputs, [&](std::size_t input, const engine::HeadOutput& output) {
    PolicyLoss result = loss(input, output);
    sums += result.sums;
    return std::move(result.loss);
  });
  const double grad_norm = policy.step(size.learning_rate, size.max_grad_norm);
  UpdateResult result = reduce(sums, work, control);
  result.grad_norm = grad_norm;
  return result;
}

}  // namespace ringside::rl
