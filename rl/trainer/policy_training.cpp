#include "rl/trainer/policy_training.h"

#include <cmath>
#include <string>
#include <utility>

#include "engine/models/headed_model.h"
#include "engine/optim/lr_schedule.h"
#include "engine/params/sharding.h"
#include "engine/runner/collator_options.h"
#include "rl/config/task.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/optimizer_options.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/value_model_setup.h"
#include "sp/mesh/control.h"

namespace ringside::rl {
namespace {

// Number of optimizer steps in one step of the algorithm.
int64_t updates_per_step(const Config& config) {
  const int64_t iterations = samples_completions(config) ? config.algorithm.num_iterations : 1;
  return iterations * config.train.num_mini_batches;
}

std::unique_ptr<engine::HeadedModel> model_of(
    const Config& config, std::vector<std::unique_ptr<engine::Decoder>> stages) {
  for (const auto& stage : stages) {
    stage->set_activation_options(activation_options(config));
  }
  return std::make_unique<engine::LanguageModel>(std::move(stages));
}

std::unique_ptr<engine::HeadedModel> load_model(const Config& config,
                                                const engine::ComputeContext& context) {
  if (config.algorithm.task == Task::kRewardModel) {
    return load_value_model(config, config.model.path, config.model.init == ModelInit::kRandom,
                            /*head_bias=*/false, context);
  }
  return model_of(config, load_policy_stages(config, context));
}

std::unique_ptr<engine::ModelRunner> make_runner(const Config& config,
                                                 const sp::ProcessGroups& comms,
                                                 std::unique_ptr<engine::HeadedModel> model) {
  auto runner = std::make_unique<engine::ModelRunner>(std::move(model), comms,
                                                      adamw_options(config.optimizer));
  runner->balance_experts(
      {config.model.router_aux_loss_coef, config.model.router_bias_update_rate});
  if (config.model.mtp_loss_coef > 0) {
    runner->predict_further_tokens({config.model.mtp_loss_coef, config.model.mtp_detach});
  }
  return runner;
}

}  // namespace

PolicyTraining::PolicyTraining(const Config& config, const RunRanks& ranks, TrainingState& state)
    : config_(config),
      ranks_(ranks),
      state_(state),
      runner_(make_runner(config, ranks.comms(),
                          load_model(config, compute_context(config, ranks.comms())))) {}

PolicyTraining::PolicyTraining(const Config& config, const RunRanks& ranks, TrainingState& state,
                               std::vector<std::unique_ptr<engine::Decoder>> stages)
    : config_(config),
      ranks_(ranks),
      state_(state),
      runner_(make_runner(config, ranks.comms(), model_of(config, std::move(stages)))) {}

double PolicyTraining::learning_rate_factor() const {
  const OptimizerConfig& optimizer = config_.optimizer;
  engine::LrSchedule schedule;
  schedule.decay = optimizer.lr_schedule;
  schedule.peak = 1.0;
  schedule.warmup_steps = optimizer.warmup_steps;
  schedule.min_lr_ratio = optimizer.min_lr_ratio;
  schedule.total_steps = config_.train.steps * updates_per_step(config_);
  return schedule.at_step(state_.optimizer_step);
}

sp::CollatorOptions PolicyTraining::collator_options(const engine::Decoder& of) const {
  return engine::collator_options(of.config(), config_.train.tokens_per_micro_batch,
                                  sequence_options(config_.sp), engine::tensor_place(of.context()));
}

std::vector<sp::MicroBatch> PolicyTraining::collate(
    const std::vector<sp::Document>& documents) const {
  return collate_for(decoder(), documents);
}

std::vector<sp::MicroBatch> PolicyTraining::collate_for(
    const engine::Decoder& model, const std::vector<sp::Document>& documents) const {
  const auto packing = sp::plan_micro_batches(
      documents, ranks_.mesh().shape().dp_size(), config_.train.tokens_per_micro_batch,
      config_.sp.shared_prefix, collator_options(decoder()).work);
  sp::check_agreement(packing.hash(), "the micro-batch plan", ranks_.world());
  return sp::collate(documents, packing, ranks_.mesh(), collator_options(model));
}

UpdateResult PolicyTraining::update(const LocalBatch& mini_batch, const StepColumns& columns,
                                    const LossFunction& loss) {
  const auto inputs = training_inputs(mini_batch, columns, column_dtype(decoder().compute_dtype()));
  const StepSize size{config_.optimizer.learning_rate * learning_rate_factor(),
                      config_.optimizer.max_grad_norm};
  UpdateResult result =
      update_policy(*runner_, inputs, loss, size, *ranks_.comms().control(sp::axes::kEntries));
  result.learning_rate = size.learning_rate;
  if (const double of_all = result.figures["loss"]; !std::isfinite(of_all)) {
    throw engine::Diverged("the loss is " + std::to_string(of_all));
  }
  ++state_.optimizer_step;
  return result;
}

}  // namespace ringside::rl
