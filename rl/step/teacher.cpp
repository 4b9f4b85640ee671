#include "rl/step/teacher.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "rl/config/record_choices.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {
namespace {

// Columns of the loss beside those of the step's table.
constexpr const char* kHidden = "teacher_hidden";
constexpr const char* kTopIds = "teacher_top_ids";
constexpr const char* kTopLogprobs = "teacher_top_logprobs";

std::vector<std::unique_ptr<engine::Decoder>> teacher_stages(const Config& config,
                                                             const std::string& path,
                                                             const engine::HeadedModel& policy) {
  Config loading = config;
  if (path != config.model.path) {
    loading.model.init = ModelInit::kPretrained;
  }
  auto stages = load_starting_stages(loading, path, policy.trunk().context(),
                                     {.frozen = true, .projections = {}});
  const int64_t words = stages.front()->config().vocab_size;
  const int64_t of_policy = policy.trunk().config().vocab_size;
  if (words < of_policy) {
    throw std::invalid_argument("the teacher " + path + " has " + std::to_string(words) +
                                " words (vocab_size), the policy has " + std::to_string(of_policy) +
                                "; expected at least as many");
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

Teacher::Teacher(const Config& config, int64_t place, const engine::HeadedModel& policy,
                 const sp::ProcessGroups& comms)
    : config_(config),
      place_(place),
      entry_(teachers_of(config.algorithm.distillation).at(static_cast<std::size_t>(place))),
      hidden_name_(std::string(kHidden) + "/" + std::to_string(place)),
      words_(policy.trunk().config().vocab_size),
      runner_(std::make_unique<engine::LanguageModel>(teacher_stages(config, entry_.place, policy)),
              comms) {}

void Teacher::keep(const engine::ModelInput& input, const engine::HeadOutput& output,
                   engine::Columns& said, HostCopies& copies) const {
  const auto copy = [&](const std::string& name, const at::Tensor& x) {
    copies.add(x, [&said, name](at::Tensor host) { said.set(name, std::move(host)); });
  };
  const DistillationConfig& distillation = config_.algorithm.distillation;
  if (distillation.over == DistillationOver::kVocabulary) {
    copy(hidden_name_, engine::own_rows(output.hidden_nE, output.entries.ranks));
  } else if (distillation.over == DistillationOver::kTopK) {
    const at::Tensor temperature =
        input.temperature_n.to(output.hidden_nE.device(), /*non_blocking=*/true);
    const engine::TopTokens top = engine::top_tokens_of(
        last_stage(runner_.model()), {output.hidden_nE, temperature, output.entries},
        distillation.top_k, words_);
    copy(kTopIds, top.ids_nK);
    copy(kTopLogprobs, top.logprobs_nK);
  }
}

void Teacher::score(StepColumns& columns, const std::vector<LocalBatch>& seen,
                    std::vector<LocalBatch>& mini_batches, ColumnOutputs& outputs) const {
  const at::ScalarType dtype = column_dtype(runner_.decoder().compute_dtype());
  HostCopies copies;
  for (std::size_t b = 0; b < seen.size(); ++b) {
    const LocalBatch& local = seen[b];
    LocalBatch& of_policy = mini_batches[b];
    std::vector<engine::ModelInput> own;
    std::vector<std::size_t> places;  // of its micro-batches among all
    std::vector<engine::ModelInput> inputs = model_inputs(local, columns, dtype);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (teacher_of_kind(local.micro_batches[i].kind, config_) == place_) {
        own.push_back(std::move(inputs[i]));
        places.push_back(i);
      }
    }
    runner_.evaluate(own, [&](std::size_t i, const engine::HeadOutput& output) {
      const sp::MicroBatch& batch = local.micro_batches[places[i]];
      TORCH_CHECK(batch.entry_index == of_policy.micro_batches[places[i]].entry_index,
                  "teacher: micro-batch ", places[i],
                  " has other loss entries here than in the policy's collation");
      outputs.add(columns.teacher, batch, local.first_token, output.logprobs_n);
      if (output.hidden_nE.defined()) {  // else another stage of the pipeline has the head
        keep(own[i], output, of_policy.said[places[i]], copies);
      }
    });
  }
  copies.store();
}

at::Tensor Teacher::vocabulary_divergence(const engine::HeadedModel& policy,
                                          const engine::ScoredEntries& scored,
                                          const engine::Columns& entries,
                                          const engine::Divergence& divergence) const {
  return engine::divergence_from(last_stage(policy), scored, last_stage(runner_.model()),
                                 entries[hidden_name_], divergence);
}

Teachers::Teachers(const Config& config, const engine::HeadedModel& policy,
                   const sp::ProcessGroups& comms)
    : config_(config),
      servers_(config, policy.trunk().config().vocab_size),
      dtype_(column_dtype(policy.trunk().compute_dtype())) {
  const auto count = std::ssize(teachers_of(config.algorithm.distillation));
  for (int64_t place = 0; place < count; ++place) {
    if (!servers_.has(place)) {
      models_.push_back(std::make_unique<Teacher>(config, place, policy, comms));
    }
  }
}

void Teachers::put_served(StepColumns& columns, const ServedColumns& served,
                          LocalBatch& local) const {
  for (std::size_t i = 0; i < local.micro_batches.size(); ++i) {
    const sp::MicroBatch& batch = local.micro_batches[i];
    if (!servers_.has(teacher_of_kind(batch.kind, config_))) {
      continue;
    }
    const at::Tensor rows_n = at::tensor(batch.entry_index, at::kLong) + local.first_token;
    const at::Tensor logprobs_n = served.logprobs_N.index_select(0, rows_n);
    for (int64_t n = 0; n < rows_n.numel(); ++n) {
      columns.teacher.at(rows_n.const_data_ptr<int64_t>()[n]) =
          logprobs_n.const_data_ptr<float>()[n];
    }
    if (distils_distributions(config_.algorithm)) {
      local.said[i].set(kTopIds, served.top_ids_NK.index_select(0, rows_n).to(at::kLong));
      local.said[i].set(kTopLogprobs, served.top_logprobs_NK.index_select(0, rows_n).to(dtype_));
    }
  }
}

void Teachers::score(StepColumns& columns, const std::vector<std::vector<LocalBatch>>& seen,
                     const ServedColumns& served, bool scores,
                     std::vector<LocalBatch>& mini_batches, ColumnOutputs& outputs) const {
  columns.teacher.assign(columns.rollout.size(), 0.0);
  for (LocalBatch& local : mini_batches) {
    local.said.resize(local.micro_batches.size());
    if (servers_.any() && scores) {
      put_served(columns, served, local);
    }
  }
  for (std::size_t t = 0; t < models_.size(); ++t) {
    models_[t]->score(columns, seen[t], mini_batches, outputs);
  }
}

at::Tensor Teachers::divergence(const engine::HeadedModel& policy, const engine::HeadOutput& output,
                                const engine::Columns& entries) const {
  const DistillationConfig& distillation = config_.algorithm.distillation;
  const engine::Divergence divergence{kind_of(distillation.divergence), distillation.mixture};
  const engine::ScoredEntries scored{output.hidden_nE, entries["temperature"], output.entries};
  if (distillation.over == DistillationOver::kTopK) {
    return engine::divergence_from(last_stage(policy), scored,
                                   engine::TopTokens{entries[kTopIds], entries[kTopLogprobs]},
                                   divergence);
  }
  const auto own = std::ranges::find_if(
      models_, [&](const auto& teacher) { return teacher->has_hidden(entries); });
  TORCH_CHECK(own != models_.end(), "teacher: a micro-batch was judged by no teacher");
  return (*own)->vocabulary_divergence(policy, scored, entries, divergence);
}

at::Tensor Teachers::distillation_loss(const engine::HeadedModel& policy,
                                       const engine::HeadOutput& output,
                                       const engine::Columns& entries, Figures& figures) const {
  const at::Tensor divergence_n = output.hidden_nE.defined() ? divergence(policy, output, entries)
                                                             : at::zeros_like(output.logprobs_n);
  const at::Tensor loss =
      config_.algorithm.distillation.coef * (entries["weight"] * divergence_n).sum();
  figures.mean("divergence", divergence_n);
  figures.sum("loss", loss);
  return loss;
}

std::unique_ptr<Teachers> make_teachers(const Config& config, const engine::HeadedModel& policy,
                                        const sp::ProcessGroups& comms) {
  return has_teacher(config.algorithm) ? std::make_unique<Teachers>(config, policy, comms)
                                       : nullptr;
}

}  // namespace ringside::rl
