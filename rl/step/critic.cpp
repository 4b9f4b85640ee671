#include "rl/step/critic.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "engine/io/value_model_files.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/optimizer_options.h"
#include "rl/setup/value_model_setup.h"
#include "sp/mesh/control.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

// Every rank writes its moments to slots of its own, so that the all-reduce gathers them. All ranks
// then merge in the same order.
ValueStatistics reduce(const ValueStatistics& local, sp::Communicator& world) {
  constexpr std::size_t kSlots = 9;
  std::vector<double> slots(static_cast<std::size_t>(world.size()) * kSlots, 0.0);
  std::size_t slot = static_cast<std::size_t>(world.rank()) * kSlots;
  for (const Moments& m : {local.value, local.return_, local.residual}) {
    for (const double number : {m.count, m.mean, m.squares}) {
      slots[slot++] = number;
    }
  }
  slots = sp::sum_scalars(slots, world);
  const auto highest = sp::max_scalars({-local.value_min, local.value_max}, world);
  ValueStatistics merged;
  for (const double* s = slots.data(); s != slots.data() + slots.size(); s += kSlots) {
    merged.value += {s[0], s[1], s[2]};
    merged.return_ += {s[3], s[4], s[5]};
    merged.residual += {s[6], s[7], s[8]};
  }
  merged.value_min = -highest[0];
  merged.value_max = highest[1];
  return merged;
}

}  // namespace

Metrics critic_metrics(const std::vector<CriticUpdate>& updates) {
  if (updates.empty()) {
    throw std::invalid_argument("critic metrics of no update");
  }
  StepFigures figures;
  ValueStatistics statistics;
  double grad_norm = 0.0;
  for (const CriticUpdate& update : updates) {
    figures += update.figures;
    statistics += update.statistics;
    grad_norm += update.grad_norm;
  }
  const auto count = static_cast<double>(updates.size());
  const bool any = statistics.value.count > 0.0;
  return {{"critic/vf_loss", figures["loss"] / count},
          {"critic/vf_clipfrac", figures["clipped"]},
          {"critic/vf_explained_var", statistics.explained_variance()},
          {"critic/values/mean", statistics.value.mean},
          {"critic/values/min", any ? statistics.value_min : 0.0},
          {"critic/values/max", any ? statistics.value_max : 0.0},
          {"critic/returns/mean", statistics.return_.mean},
          {"critic/grad_norm", grad_norm / count},
          {"critic/lr", updates.back().learning_rate}};
}

std::unique_ptr<engine::ValueModel> load_starting_critic(const Config& config,
                                                         const engine::ComputeContext& context) {
  const bool own_path = !config.algorithm.critic.model_path.empty();
  const std::string& path = own_path ? config.algorithm.critic.model_path : config.model.path;
  const bool random = config.model.init == ModelInit::kRandom && !own_path;
  return load_value_model(config, path, random, /*head_bias=*/true, context);
}

Critic::Critic(const Config& config, const sp::ProcessGroups& comms)
    : Critic(config, load_starting_critic(config, compute_context(config, comms)), comms) {}

Critic::Critic(const Config& config, std::unique_ptr<engine::ValueModel> model,
               const sp::ProcessGroups& comms)
    : config_(config.algorithm.critic),
      model_(model.get()),
      runner_(std::move(model), comms, adamw_options(config.optimizer)),
      control_(comms.control(sp::axes::kEntries)) {}

CriticUpdate Critic::update(const LocalBatch& mini_batch, const StepColumns& columns,
                            double loss_tokens, double learning_rate) {
  TORCH_CHECK(loss_tokens >= 0.0, "critic: loss_tokens must not be negative, got ", loss_tokens);
  const double token_weight = loss_tokens > 0.0 ? 1.0 / loss_tokens : 0.0;
  const at::ScalarType dtype = column_dtype(runner_.decoder().compute_dtype());
  ValueStatistics statistics;
  std::vector<engine::ModelInput> inputs = model_inputs(mini_batch, columns, dtype);
  for (engine::ModelInput& input : inputs) {
    const auto of = [&](const std::vector<double>& column) {
      return read_column(column, *input.batch, mini_batch.first_token, dtype);
    };
    input.columns.set("value", of(columns.value));
    input.columns.set("returns", of(columns.returns));
    if (model_->scores()) {
      statistics += ValueStatistics::of(input.columns["value"], input.columns["returns"]);
    }
  }
  Figures figures;
  runner_.train(inputs, [&](const engine::HeadOutput& output, const engine::Columns& inputs_n) {
    return value_loss(output.values_n, inputs_n["value"], inputs_n["returns"], token_weight,
                      config_.value_clip, figures);
  });
  const auto step = runner_.step(learning_rate, config_.max_grad_norm, figures.take());
  return {StepFigures::reduce(step.sums, *control_), reduce(statistics, *control_), step.grad_norm,
          learning_rate};
}

}  // namespace ringside::rl
