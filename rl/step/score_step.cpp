#include "rl/step/score_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "rl/algorithm/correction.h"
#include "rl/config/teacher.h"
#include "rl/data/sample_order.h"
#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

bool kl_before_updates(const AlgorithmConfig& config) {
  return config.kl_coef > 0.0 && config.kl_in != KlIn::kLoss;
}

bool reads_squares(const AlgorithmConfig& config) {
  return config.advantage.estimator == AdvantageEstimator::kOptimalTokenBaseline;
}

// Whether advantages, corrections or the choice of tokens are computed from old log-probs.
bool reads_old(const AlgorithmConfig& config) {
  return corrects(config.correction) || kl_before_updates(config) || reads_squares(config) ||
         distils_samples(config) || policy_loss(config.loss).choose != nullptr;
}

using Figure = at::Tensor engine::HeadOutput::*;

// The old policy's log-probs. Its routes are replayed, or recorded for training.
void fill_old(StepColumns& columns, const engine::ModelRunner& policy,
              std::vector<LocalBatch>& mini_batches, RouterReplay replay, ColumnOutputs& outputs) {
  columns.old.assign(columns.rollout.size(), 0.0);
  HostCopies routes;
  for (LocalBatch& local : mini_batches) {
    if (replay == RouterReplay::kRecompute) {
      local.routes.resize(local.micro_batches.size());
    }
    auto inputs = policy_inputs(local, columns, column_dtype(policy.decoder().compute_dtype()));
    for (engine::ModelInput& input : inputs) {
      input.records_routes = replay == RouterReplay::kRecompute;
    }
    policy.evaluate(inputs, [&](std::size_t i, const engine::HeadOutput& output) {
      outputs.add(columns.old, local.micro_batches[i], local.first_token, output.logprobs_n);
      if (output.routes_sLK.defined()) {
        routes.add(output.routes_sLK,
                   [&local, i](at::Tensor host) { local.routes[i] = std::move(host); });
      }
    });
  }
  routes.store();
}

// One forward pass of the model over every mini-batch. Its output fills the column when `outputs`
// are stored.
void fill(std::vector<double>& column, const engine::ModelRunner& model, Figure figure,
          const StepColumns& columns, const std::vector<LocalBatch>& mini_batches,
          ColumnOutputs& outputs) {
  column.assign(columns.rollout.size(), 0.0);
  for (const LocalBatch& local : mini_batches) {
    const auto inputs = model_inputs(local, columns, column_dtype(model.decoder().compute_dtype()));
    model.evaluate(inputs, [&](std::size_t i, const engine::HeadOutput& output) {
      outputs.add(column, local.micro_batches[i], local.first_token, output.*figure);
    });
  }
}

// The policy's log-probs at half the temperature: 2 x / T - log sum exp(2 x / T) of logits x. From
// them and those at the temperature follow the sums of squared probabilities, without a sum of
// their own over the vocabulary, at the price of one more forward pass.
void fill_at_half_temperature(std::vector<double>& column, const engine::ModelRunner& policy,
                              const StepColumns& columns,
                              const std::vector<LocalBatch>& mini_batches, ColumnOutputs& outputs) {
  StepColumns halved;
  halved.kept_sets = columns.kept_sets;
  halved.temperature.assign(columns.rollout.size(), 0.5);
  for (std::size_t t = 0; t < columns.temperature.size(); ++t) {
    halved.temperature[t] *= columns.temperature[t];
  }
  column.assign(columns.rollout.size(), 0.0);
  for (const LocalBatch& local : mini_batches) {
    const auto inputs =
        policy_inputs(local, halved, column_dtype(policy.decoder().compute_dtype()));
    policy.evaluate(inputs, [&](std::size_t i, const engine::HeadOutput& output) {
      outputs.add(column, local.micro_batches[i], local.first_token, output.logprobs_n);
    });
  }
}

// sum p^2 = exp(log sum exp(2 x / T) - 2 log sum exp(x / T)) = exp(2 old - the log-prob above).
void set_squares(StepColumns& columns) {
  for (std::size_t t = 0; t < columns.squares.size(); ++t) {
    columns.squares[t] = std::exp(2.0 * columns.old[t] - columns.squares[t]);
  }
}

}  // namespace

bool needs_old_pass(const Config& config) {
  return config.algorithm.old_logprobs == OldLogprobs::kRecompute &&
         (config.train.num_mini_batches * config.algorithm.num_iterations > 1 ||
          reads_old(config.algorithm));
}

bool old_is_merged(const Config& config) {
  return reads_old(config.algorithm) || rearranges(config);
}

void score_step(StepColumns& columns, std::vector<LocalBatch>& mini_batches,
                const ScoringModels& models, const Config& config, const sp::ProcessGroups& comms) {
  const AlgorithmConfig& algorithm = config.algorithm;
  std::vector<std::vector<double>*> of_all_ranks;
  ColumnOutputs outputs;
  if (algorithm.old_logprobs == OldLogprobs::kRollout) {
    columns.old = columns.rollout;
  } else if (needs_old_pass(config)) {
    fill_old(columns, models.policy, mini_batches, algorithm.router_replay, outputs);
    if (old_is_merged(config)) {
      of_all_ranks.push_back(&columns.old);
    }
  }
  if (reads_squares(algorithm)) {
    fill_at_half_temperature(columns.squares, models.policy, columns, mini_batches, outputs);
    of_all_ranks.push_back(&columns.squares);
  }
  if (models.reference != nullptr) {
    fill(columns.reference, *models.reference, &engine::HeadOutput::logprobs_n, columns,
         models.seen_by_reference.empty() ? mini_batches : models.seen_by_reference, outputs);
    if (kl_before_updates(algorithm) || rearranges(config)) {
      of_all_ranks.push_back(&columns.reference);
    }
  } else if (kl_before_updates(algorithm) && algorithm.kl_to == KlTo::kRollout) {
    columns.reference = columns.rollout;
  }
  if (models.teachers != nullptr) {
    models.teachers->score(columns, models.seen_by_teachers, models.served,
                           models.policy.model().scores(), mini_batches, outputs);
    if (distils_samples(algorithm)) {
      of_all_ranks.push_back(&columns.teacher);
    }
  }
  if (models.critic != nullptr) {
    fill(columns.value, *models.critic, &engine::HeadOutput::values_n, columns, mini_batches,
         outputs);
    of_all_ranks.push_back(&columns.value);
  }
  outputs.store();
  merge_columns(of_all_ranks, *comms.control(sp::axes::kEntries));
  set_squares(columns);
}

void apply_micro_batch_mean(StepColumns& columns, const LocalBatch& mini_batch,
                            LossAggregation aggregation, const sp::ProcessGroups& comms) {
  if (aggregation != LossAggregation::kMicroBatchTokenMean) {
    return;
  }
  std::vector<double> entries;
  for (const sp::MicroBatch& batch : mini_batch.micro_batches) {
    entries.push_back(static_cast<double>(batch.num_entries()));
  }
  // Loss tokens of each micro-batch of this data-parallel rank.
  at::Tensor tokens = at::tensor(entries, at::kDouble);
  comms.control(sp::axes::kSp)->all_reduce_sum(tokens, "micro_batch_tokens");
  at::Tensor micro_batches = tokens.gt(0).sum(at::kDouble).view({1});
  comms.control(sp::axes::kBatch)->all_reduce_sum(micro_batches, "micro_batches");
  for (std::size_t m = 0; m < mini_batch.micro_batches.size(); ++m) {
    const double divisor = std::max(
        1.0, tokens[static_cast<int64_t>(m)].item<double>() * micro_batches.item<double>());
    for (const int64_t entry : mini_batch.micro_batches[m].entry_index) {
      columns.weight[mini_batch.first_token + entry] /= divisor;
    }
  }
}

}  // namespace ringside::rl
