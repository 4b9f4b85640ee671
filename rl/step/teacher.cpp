#include "rl/step/teacher.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>

#include "engine/models/teacher_divergence.h"
#include "rl/config/teacher.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {
namespace {

// Columns of the loss beside those of the step's table.
constexpr const char* kHidden = "teacher_hidden";
constexpr const char* kTopIds = "teacher_top_ids";
constexpr const char* kTopLogprobs = "teacher_top_logprobs";

std::vector<std::unique_ptr<engine::Decoder>> teacher_stages(const Config& config,
                                                             const engine::HeadedModel& policy) {
  const std::string& path = config.algorithm.distillation.teacher;
  Config loading = config;
  if (path != config.model.path) {
    loading.model.init = ModelInit::kPretrained;
  }
  auto stages = load_starting_stages(loading, path, policy.trunk().context(),
                                     {.frozen = true, .projections = {}});
  const int64_t words = stages.front()->config().vocab_size;
  const int64_t of_policy = policy.trunk().config().vocab_size;
  if (words < of_policy) {
    throw std::invalid_argument("algorithm.distillation.teacher " + path + " has " +
                                std::to_string(words) + " words (vocab_size), the policy has " +
                                std::to_string(of_policy) + "; expected at least as many");
  }
  for (const auto& stage : stages) {
    engine::ActivationOptions options;
    options.logit_chunk_bytes = activation_options(config).logit_chunk_bytes;
    stage->set_activation_options(options);
  }
  return stages;
}

engine::DivergenceKind kind_of(DistillationDivergence divergence) {
  switch (divergence) {
    case DistillationDivergence::kReverseKl:
      return engine::DivergenceKind::kReverseKl;
    case DistillationDivergence::kForwardKl:
      return engine::DivergenceKind::kForwardKl;
    case DistillationDivergence::kJensenShannon:
      return engine::DivergenceKind::kJensenShannon;
  }
  throw std::invalid_argument("unknown algorithm.distillation.divergence");
}

const engine::Decoder& last_stage(const engine::HeadedModel& model) {
  return *model.stages().back();
}

}  // namespace

Teacher::Teacher(const Config& config, const engine::HeadedModel& policy,
                 const sp::ProcessGroups& comms)
    : config_(config.algorithm.distillation),
      words_(policy.trunk().config().vocab_size),
      runner_(std::make_unique<engine::LanguageModel>(teacher_stages(config, policy)), comms) {}

void Teacher::score(StepColumns& columns, const std::vector<LocalBatch>& seen,
                    std::vector<LocalBatch>& mini_batches, ColumnOutputs& outputs) const {
  columns.teacher.assign(columns.rollout.size(), 0.0);
  const engine::Decoder& head = last_stage(runner_.model());
  HostCopies copies;
  for (std::size_t b = 0; b < seen.size(); ++b) {
    const LocalBatch& local = seen[b];
    LocalBatch& of_policy = mini_batches[b];
    of_policy.said.resize(local.micro_batches.size());
    const auto inputs = model_inputs(local, columns, column_dtype(head.compute_dtype()));
    runner_.evaluate(inputs, [&](std::size_t i, const engine::HeadOutput& output) {
      const sp::MicroBatch& batch = local.micro_batches[i];
      TORCH_CHECK(batch.entry_index == of_policy.micro_batches[i].entry_index,
                  "teacher: micro-batch ", i,
                  " has other loss entries here than in the policy's collation");
      outputs.add(columns.teacher, batch, local.first_token, output.logprobs_n);
      if (!output.hidden_nE.defined()) {
        return;  // another stage of the pipeline has the head
      }
      engine::Columns& said = of_policy.said[i];
      const auto keep = [&](const char* name, const at::Tensor& x) {
        copies.add(x, [&said, name](at::Tensor host) { said.set(name, std::move(host)); });
      };
      if (config_.over == DistillationOver::kVocabulary) {
        keep(kHidden, engine::own_rows(output.hidden_nE, output.entries.ranks));
      } else if (config_.over == DistillationOver::kTopK) {
        const at::Tensor temperature =
            inputs[i].temperature_n.to(output.hidden_nE.device(), /*non_blocking=*/true);
        const engine::TopTokens top = engine::top_tokens_of(
            head, {output.hidden_nE, temperature, output.entries}, config_.top_k, words_);
        keep(kTopIds, top.ids_nK);
        keep(kTopLogprobs, top.logprobs_nK);
      }
    });
  }
  copies.store();
}

at::Tensor Teacher::divergence(const engine::HeadedModel& policy, const engine::HeadOutput& output,
                               const engine::Columns& entries) const {
  const engine::Divergence divergence{kind_of(config_.divergence), config_.mixture};
  const engine::Decoder& student = last_stage(policy);
  const engine::ScoredEntries scored{output.hidden_nE, entries["temperature"], output.entries};
  if (config_.over == DistillationOver::kVocabulary) {
    return engine::divergence_from(student, scored, last_stage(runner_.model()), entries[kHidden],
                                   divergence);
  }
  return engine::divergence_from(
      student, scored, engine::TopTokens{entries[kTopIds], entries[kTopLogprobs]}, divergence);
}

at::Tensor Teacher::distillation_loss(const engine::HeadedModel& policy,
                                      const engine::HeadOutput& output,
                                      const engine::Columns& entries, Figures& figures) const {
  const at::Tensor divergence_n = output.hidden_nE.defined() ? divergence(policy, output, entries)
                                                             : at::zeros_like(output.logprobs_n);
  const at::Tensor loss = config_.coef * (entries["weight"] * divergence_n).sum();
  figures.mean("divergence", divergence_n);
  figures.sum("loss", loss);
  return loss;
}

std::unique_ptr<Teacher> make_teacher(const Config& config, const engine::HeadedModel& policy,
                                      const sp::ProcessGroups& comms) {
  return has_teacher(config.algorithm) ? std::make_unique<Teacher>(config, policy, comms) : nullptr;
}

}  // namespace ringside::rl
