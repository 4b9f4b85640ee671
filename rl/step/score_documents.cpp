#include "rl/step/score_documents.h"

#include <ATen/ATen.h>

#include <utility>

#include "engine/params/sharding.h"
#include "engine/runner/collator_options.h"
#include "rl/step/column_tensors.h"

namespace ringside::rl {
namespace {

// Of each entry what the model's output has in this member.
std::vector<std::vector<double>> entry_scores(const engine::ModelRunner& model,
                                              std::span<const sp::Document> documents,
                                              const sp::Mesh& mesh, const sp::ProcessGroups& comms,
                                              const ScoreOptions& options,
                                              const StepColumns& columns,
                                              at::Tensor engine::HeadOutput::*member) {
  const auto& config = model.decoder().config();
  const sp::CollatorOptions collator =
      engine::collator_options(config, options.tokens_per_micro_batch, options.sequence,
                               engine::tensor_place(model.decoder().context()));
  LocalBatch local{sp::collate(documents, mesh, collator), 0};
  for (const sp::MicroBatch& micro_batch : local.micro_batches) {
    local.routes.push_back(routes_of(micro_batch, config));
  }
  int64_t num_entries = 0;
  for (const sp::Document& document : documents) {
    num_entries += document.entries.size();
  }
  std::vector<double> scores(num_entries, 0.0);
  const auto inputs = policy_inputs(local, columns, column_dtype(model.decoder().compute_dtype()));
  ColumnOutputs outputs;
  model.evaluate(inputs, [&](std::size_t i, const engine::HeadOutput& output) {
    outputs.add(scores, local.micro_batches[i], 0, output.*member);
  });
  outputs.store();
  std::vector<double>* merged[] = {&scores};
  merge_columns(merged, *comms.control(sp::axes::kEntries));
  std::vector<std::vector<double>> result;
  auto next = scores.begin();
  for (const sp::Document& document : documents) {
    result.emplace_back(next, next + document.entries.size());
    next += document.entries.size();
  }
  return result;
}

}  // namespace

std::vector<std::vector<double>> score_documents(
    const engine::ModelRunner& model, std::span<const sp::Document> documents, const sp::Mesh& mesh,
    const sp::ProcessGroups& comms, const ScoreOptions& options, std::vector<double> temperature,
    TokenSets kept_sets) {
  StepColumns columns;
  columns.temperature = std::move(temperature);
  columns.kept_sets = std::move(kept_sets);
  return entry_scores(model, documents, mesh, comms, options, columns,
                      &engine::HeadOutput::logprobs_n);
}

std::vector<std::vector<double>> document_values(const engine::ModelRunner& model,
                                                 std::span<const sp::Document> documents,
                                                 const sp::Mesh& mesh,
                                                 const sp::ProcessGroups& comms,
                                                 const ScoreOptions& options) {
  return entry_scores(model, documents, mesh, comms, options, {}, &engine::HeadOutput::values_n);
}

}  // namespace ringside::rl
