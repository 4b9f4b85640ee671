#include "rl/step/policy_update.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "sp/mesh/control.h"

namespace ringside::rl {
namespace {

// Names among the figures of an optimizer step.
constexpr const char* kAdditive = "loss_sums";
constexpr const char* kHighest = "loss_highest";
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

// Figures of this rank -> figures of the world. Sequence-parallel ranks hold disjoint entries, so
// nothing is counted twice.
UpdateResult reduce(const LossSums& local, const engine::SequenceWork& work,
                    const RouteFigures& routes, sp::Communicator& control) {
  const auto sums = sp::sum_scalars(local.additive(), control);
  const auto done =
      sp::sum_scalars({work.raw_tokens, work.unique_tokens, work.raw_pairs, work.unique_pairs,
                       work.predicted_bytes, work.sent_bytes, routes.replayed, routes.changed},
                      control);
  const auto highest = sp::max_scalars(
      {local.sampling_difference_max, work.balance_tokens_max, work.balance_pairs_max}, control);
  UpdateResult result;
  result.sums = LossSums::from(sums, highest[0]);
  result.sequence = {
      ratio(done[0], done[1]), ratio(done[2], done[3]), done[4], done[5], highest[1], highest[2]};
  result.routes = {done[6], done[7]};
  result.experts = expert_figures(work.expert_rows, control);
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
  engine::DeviceSums figures;
  const auto add = [&](const LossFigures& part) {
    figures.add(kAdditive, part.additive_k);
    figures.maximise(kHighest, part.sampling_difference_max);
  };
  RouteFigures routes;
  for (const engine::ModelInput& input : inputs) {
    routes.replayed +=
        input.routes_sLK.defined() ? static_cast<double>(input.routes_sLK.numel()) : 0.0;
  }
  const auto work = policy.train(
      inputs, [&](const engine::HeadOutput& output, std::span<const at::Tensor> columns_n) {
        PolicyLoss result = loss(output, columns_n);
        add(result.figures);
        if (output.changed_routes.defined()) {
          figures.add(kChangedRoutes, output.changed_routes);
        }
        return std::move(result.loss);
      });
  const auto step = policy.step(size.learning_rate, size.max_grad_norm, std::move(figures));
  const LossSums sums =
      inputs.empty() ? LossSums{}
                     : LossSums::from(step.sums.at(kAdditive), step.sums.at(kHighest).front());
  if (const auto changed = step.sums.find(kChangedRoutes); changed != step.sums.end()) {
    routes.changed = changed->second.front();
  }
  UpdateResult result = reduce(sums, work, routes, control);
  result.experts.aux_loss = step.balance_loss;
  result.grad_norm = step.grad_norm;
  result.loss_scale = step.loss_scale;
  result.skipped = step.skipped;
  return result;
}

}  // namespace ringside::rl
