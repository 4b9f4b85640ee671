#include "rl/step/policy_update.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sp/mesh/control.h"

namespace ringside::rl {
namespace {

constexpr const char* kChangedRoutes = "changed_routes";

double ratio(double whole, double part) { return part > 0 ? whole / part : 1.0; }

// rows of this rank's tokens -> figures of the world.
ExpertFigures expert_figures(const engine::ExpertLoad& rows, sp::Communicator& control) {
  std::vector<double> flat;
  for (const std::vector<double>& layer : rows) {
    flat.insert(flat.end(), layer.begin(), layer.end());
  }
  if (flat.empty()) {
    return {};
  }
  flat = sp::sum_scalars(flat, control);
  ExpertFigures figures{true};
  figures.unused =
      static_cast<double>(std::ranges::count(flat, 0.0)) / static_cast<double>(flat.size());
  auto begin = flat.cbegin();
  for (const std::vector<double>& layer : rows) {
    const auto end = begin + static_cast<std::ptrdiff_t>(layer.size());
    const double sum = std::accumulate(begin, end, 0.0);
    if (sum > 0.0) {
      const double mean = sum / static_cast<double>(layer.size());
      figures.load_max = std::max(figures.load_max, *std::max_element(begin, end) / mean);
    }
    begin = end;
  }
  return figures;
}

// Figures of this rank -> figures of all. Sequence-parallel ranks hold disjoint entries, and stages
// count different things, so nothing is counted twice.
UpdateResult reduce(const engine::HostSums& figures, const engine::SequenceWork& work,
                    double replayed_routes, sp::Communicator& control) {
  UpdateResult result;
  result.figures = StepFigures::reduce(figures, control);
  const auto done =
      sp::sum_scalars({work.raw_tokens, work.unique_tokens, work.raw_pairs, work.unique_pairs,
                       work.predicted_bytes, work.sent_bytes, replayed_routes},
                      control);
  const auto highest = sp::max_scalars({work.balance_tokens_max, work.balance_pairs_max}, control);
  result.sequence = {
      ratio(done[0], done[1]), ratio(done[2], done[3]), done[4], done[5], highest[0], highest[1]};
  result.routes = {done[6], result.figures[kChangedRoutes]};
  result.experts = expert_figures(work.expert_rows, control);
  return result;
}

}  // namespace

StepFigures merged_figures(std::span<const UpdateResult> updates) {
  StepFigures figures;
  for (const UpdateResult& update : updates) {
    figures += update.figures;
  }
  return figures;
}

UpdateResult update_policy(engine::ModelRunner& policy, std::span<const engine::ModelInput> inputs,
                           const LossFunction& loss, StepSize size, sp::Communicator& control) {
  Figures figures;
  double replayed_routes = 0.0;
  for (const engine::ModelInput& input : inputs) {
    // Each token once, where its entries are.
    replayed_routes += input.routes_sLK.defined() && policy.model().scores()
                           ? static_cast<double>(input.routes_sLK.numel())
                           : 0.0;
  }
  std::vector<at::Tensor> logprobs;
  const auto work =
      policy.train(inputs, [&](const engine::HeadOutput& output, const engine::Columns& columns) {
        if (policy.model().has_vocabulary()) {
          logprobs.push_back(output.logprobs_n.detach());
        }
        return loss(output, columns, figures);
      });
  if (!policy.model().scores()) {
    logprobs.assign(inputs.size(), at::Tensor());  // another stage has them
  }
  if (work.changed_routes.defined()) {
    figures.sum(kChangedRoutes, work.changed_routes);
  }
  const auto step = policy.step(size.learning_rate, size.max_grad_norm, figures.take());
  UpdateResult result = reduce(step.sums, work, replayed_routes, control);
  result.experts.aux_loss = step.balance_loss;
  result.further_loss = step.further_loss;
  result.grad_norm = step.grad_norm;
  result.loss_scale = step.loss_scale;
  result.skipped = step.skipped;
  result.logprobs = std::move(logprobs);
  return result;
}

}  // namespace ringside::rl
