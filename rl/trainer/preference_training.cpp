#include "rl/trainer/preference_training.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <utility>

#include "sp/mesh/control.h"

namespace ringside::rl {
namespace {

// Collects what the model says of each entry: a log-prob, or of a reward model a value.
void add_scores(const engine::ModelRunner& model, const LocalBatch& local,
                std::vector<double>& column, ColumnOutputs& outputs) {
  const StepColumns no_columns;  // the temperature is 1
  const auto inputs =
      model_inputs(local, no_columns, column_dtype(model.decoder().compute_dtype()));
  const bool logprobs = model.model().has_vocabulary();
  model.evaluate(inputs, [&](std::size_t i, const engine::HeadOutput& output) {
    outputs.add(column, local.micro_batches[i], local.first_token,
                logprobs ? output.logprobs_n : output.values_n);
  });
}

// Sums of consecutive numbers of `column`, as many each as `counts` says.
std::vector<double> document_sums(const std::vector<double>& column,
                                  const std::vector<int64_t>& counts) {
  std::vector<double> result;
  auto next = column.begin();
  for (const int64_t count : counts) {
    double sum = 0.0;
    for (const auto end = next + count; next != end; ++next) {
      sum += *next;
    }
    result.push_back(sum);
  }
  return result;
}

// The weighted sum of log-probs or values whose gradient is the loss's (pair_losses.h).
LossFunction linear_loss(bool of_logprobs) {
  return [of_logprobs](const engine::HeadOutput& output, const engine::Columns& columns,
                       Figures& figures) {
    const at::Tensor& scores_n = of_logprobs ? output.logprobs_n : output.values_n;
    const at::Tensor loss = (columns["weight"] * scores_n).sum();
    figures.count(scores_n);
    figures.sum("loss", loss);
    if (of_logprobs) {
      figures.mean("entropy", output.entropy_n);
    }
    return loss;
  };
}

}  // namespace

PairDocuments make_pair_documents(std::span<const TokenizedPair> pairs, Task task) {
  PairDocuments result;
  for (const TokenizedPair& pair : pairs) {
    for (const TokenizedExample* example : {&pair.chosen, &pair.rejected}) {
      result.documents.push_back(task == Task::kRewardModel ? make_reward_document(*example)
                                                            : make_sft_document(*example));
      result.entries.push_back(result.documents.back().entries.size());
      result.tokens += static_cast<int64_t>(example->ids.size());
    }
  }
  return result;
}

PreferenceTraining::PreferenceTraining(const Config& config, const RunRanks& ranks,
                                       PolicyTraining& policy)
    : config_(config),
      ranks_(ranks),
      policy_(policy),
      reference_(make_reference(config, policy.runner().model(), ranks.comms())) {}

ScoredPairs PreferenceTraining::score(const LocalBatch& local, const PairDocuments& pairs) const {
  std::size_t entries = 0;
  for (const int64_t count : pairs.entries) {
    entries += static_cast<std::size_t>(count);
  }
  std::vector<double> of_model(entries, 0.0);
  std::vector<double> of_reference(reference_ ? entries : 0, 0.0);
  ColumnOutputs outputs;
  add_scores(policy_.runner(), local, of_model, outputs);
  if (reference_) {
    add_scores(reference_->runner(), local, of_reference, outputs);
  }
  outputs.store();
  std::vector<std::vector<double>*> of_all_ranks{&of_model};
  if (reference_) {
    of_all_ranks.push_back(&of_reference);
  }
  merge_columns(of_all_ranks, *ranks_.comms().control(sp::axes::kEntries));
  ScoredPairs scored;
  scored.score = document_sums(of_model, pairs.entries);
  if (reference_) {
    scored.reference = document_sums(of_reference, pairs.entries);
    scored.tokens = pairs.entries;
  }
  return scored;
}

PairLosses PreferenceTraining::losses_of(const ScoredPairs& scored) const {
  const PreferenceConfig& preference = config_.algorithm.preference;
  return reference_ ? dpo_losses(scored, preference) : bradley_terry_losses(scored, preference);
}

PairFigures PreferenceTraining::evaluate(const PairDocuments& pairs) const {
  const LocalBatch local{policy_.collate(pairs.documents), 0};
  return losses_of(score(local, pairs)).figures;
}

PairUpdate PreferenceTraining::update(const PairDocuments& pairs) {
  const double sft_coef = reference_ ? config_.algorithm.preference.sft_coef : 0.0;
  const LocalBatch local{policy_.collate(pairs.documents), 0};
  const ScoredPairs scored = score(local, pairs);
  const PairLosses losses = losses_of(scored);
  const double loss = losses.figures.total_loss(sft_coef);
  if (!std::isfinite(loss)) {
    throw engine::Diverged("the loss is " + std::to_string(loss));
  }
  StepColumns columns;
  columns.weight = token_weights(scored, losses, sft_coef);
  const bool of_logprobs = policy_.runner().model().has_vocabulary();
  PairUpdate result{policy_.update(local, columns, linear_loss(of_logprobs)), losses.figures};
  // What was differentiated has the gradient of the loss, but another value.
  for (const char* name : {"loss", "policy_loss"}) {
    result.update.figures.set(name, FigureRule::kSum, loss);
  }
  return result;
}

Metrics pair_metrics(const PairFigures& figures, const AlgorithmConfig& config) {
  const double chosen = figures.mean(&PairFigures::chosen_reward);
  const double rejected = figures.mean(&PairFigures::rejected_reward);
  const double correct = figures.mean(&PairFigures::correct);
  if (config.task == Task::kRewardModel) {
    return {{"loss", figures.total_loss(0.0)},
            {"accuracy", correct},
            {"margin", chosen - rejected},
            {"min_reward", figures.min_reward},
            {"mean_reward", (chosen + rejected) / 2},
            {"max_reward", figures.max_reward}};
  }
  return {{"loss", figures.total_loss(config.preference.sft_coef)},
          {"rewards/chosen", chosen},
          {"rewards/rejected", rejected},
          {"rewards/accuracies", correct},
          {"rewards/margins", chosen - rejected},
          {"logps/chosen", figures.mean(&PairFigures::chosen_score)},
          {"logps/rejected", figures.mean(&PairFigures::rejected_score)}};
}

}  // namespace ringside::rl
