#include "rl/trainer/step_samples.h"

#include <algorithm>
#include <utility>

#include "rl/data/sample_order.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/step/score_documents.h"
#include "rl/step/score_step.h"

namespace ringside::rl {
namespace {

// The documents whose loss entries are the loss tokens of one sample: one, or one for each branch.
std::vector<sp::Document> documents_of(const StepBatch& batch, sp::Range tokens) {
  std::vector<sp::Document> found;
  for (const MiniBatch& mini_batch : batch.mini_batches) {
    int64_t first = mini_batch.first_token;
    for (const sp::Document& document : mini_batch.documents) {
      const int64_t end = first + document.entries.size();
      if (end > first && first >= tokens.begin && end <= tokens.end) {
        found.push_back(document);
      }
      first = end;
    }
  }
  return found;
}

}  // namespace

StepSamples::StepSamples(const Config& config, const RunRanks& ranks,
                         const std::filesystem::path& run_dir, GrantedImages* images)
    : config_(config), ranks_(ranks), images_(images) {
  if (ranks.is_main() && config.log.samples > 0) {
    const int64_t placeholder = images == nullptr ? -1 : images->rules().image_token_id;
    log_.emplace(open_sample_log(run_dir, config.model.path, placeholder));
  }
}

void StepSamples::pick(std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
                       const StepAdvantages& advantages, RolloutSource* source) {
  picked_.clear();
  const auto& begin = batch.columns.begin;
  std::vector<double> reward = advantages.sample_score;
  reward.resize(rollouts.size(), 0.0);  // estimator given: there are no rewards
  const auto count = static_cast<std::size_t>(config_.log.samples);
  for (const std::size_t i : lowest_and_highest(reward, count)) {
    const sp::Range tokens{begin[i], begin[i + 1]};
    LoggedSample sample{&rollouts[i], {}, reward[i]};
    if (source != nullptr) {
      sample.answer = source->reference_answer(rollouts[i].group_id);
    }
    if (log_ && images_ != nullptr) {
      sample.images = images_->logged(rollouts[i]);
    }
    sample.advantage =
        std::span(advantages.advantage).subspan(tokens.begin, tokens.end - tokens.begin);
    picked_.push_back({sample, tokens});
  }
}

bool StepSamples::has_picked(const sp::MicroBatch& batch, int64_t first_token) const {
  return std::ranges::any_of(batch.entry_index, [&](int64_t entry) {
    const int64_t token = first_token + entry;
    return std::ranges::any_of(picked_, [token](const Picked& picked) {
      return picked.tokens.begin <= token && token < picked.tokens.end;
    });
  });
}

std::vector<double> StepSamples::of_picked(const std::vector<double>& column) const {
  std::vector<double> values;
  for (const Picked& picked : picked_) {
    values.insert(values.end(), column.begin() + picked.tokens.begin,
                  column.begin() + picked.tokens.end);
  }
  return values;
}

StepSamples::Logprobs StepSamples::logprobs(const engine::ModelRunner& policy,
                                            const std::vector<LocalBatch>& mini_batches,
                                            const StepBatch& batch,
                                            std::span<const UpdateResult> updates) const {
  // One after another over the mini-batches; none where passes have mini-batches of their own.
  const std::size_t passes = rearranges(config_) ? 0 : updates.size();
  std::vector<double> first(batch.columns.rollout.size(), 0.0);
  std::vector<double> last(first.size(), 0.0);
  ColumnOutputs outputs;
  for (std::size_t b = 0; b < mini_batches.size() && b < passes; ++b) {
    const LocalBatch& local = mini_batches[b];
    for (std::size_t i = 0; i < local.micro_batches.size(); ++i) {
      const sp::MicroBatch& micro_batch = local.micro_batches[i];
      if (has_picked(micro_batch, local.first_token)) {
        outputs.add(first, micro_batch, local.first_token, updates[b].logprobs.at(i));
        outputs.add(last, micro_batch, local.first_token,
                    updates[passes - mini_batches.size() + b].logprobs.at(i));
      }
    }
  }
  outputs.store();
  // Some columns of old log-probs hold this rank's tokens alone, some those of all ranks.
  const bool scored = needs_old_pass(config_);
  Logprobs found;
  std::vector<std::vector<double>*> to_merge;
  if (scored || passes > 0) {
    found.before = of_picked(scored ? batch.columns.old : first);
    if (!scored || !old_is_merged(config_)) {
      to_merge.push_back(&found.before);
    }
  }
  if (passes > 1 && !config_.log.samples_after) {
    found.after = of_picked(last);
    to_merge.push_back(&found.after);
  }
  merge_columns(to_merge, *ranks_.comms().control(sp::axes::kEntries));
  if (config_.log.samples_after) {
    found.after = score_again(policy, batch);
  }
  return found;
}

// Collective over: the world.
std::vector<double> StepSamples::score_again(const engine::ModelRunner& policy,
                                             const StepBatch& batch) const {
  std::vector<sp::Document> documents;
  for (const Picked& picked : picked_) {
    std::ranges::move(documents_of(batch, picked.tokens), std::back_inserter(documents));
  }
  if (documents.empty()) {
    return {};
  }
  const ScoreOptions options{config_.train.tokens_per_micro_batch, sequence_options(config_.sp)};
  TokenSets kept_sets;
  for (const Picked& picked : picked_) {
    if (batch.columns.kept_sets.any()) {
      kept_sets.add(batch.columns.kept_sets, picked.tokens.begin, picked.tokens.end);
    }
  }
  std::vector<double> all;
  for (const auto& of_document :
       score_documents(policy, documents, ranks_.mesh(), ranks_.comms(), options,
                       of_picked(batch.columns.temperature), std::move(kept_sets))) {
    all.insert(all.end(), of_document.begin(), of_document.end());
  }
  return all;
}

void StepSamples::write(int64_t step, const engine::ModelRunner& policy,
                        const std::vector<LocalBatch>& mini_batches, const StepBatch& batch,
                        std::span<const UpdateResult> updates) {
  const Logprobs found = logprobs(policy, mini_batches, batch, updates);
  if (!log_ || picked_.empty()) {
    return;
  }
  std::vector<LoggedSample> samples;
  int64_t next = 0;
  for (const Picked& picked : picked_) {
    const int64_t size = picked.tokens.end - picked.tokens.begin;
    LoggedSample sample = picked.sample;
    if (!found.before.empty()) {
      sample.old_logprob = std::span(found.before).subspan(next, size);
    }
    if (!found.after.empty()) {
      sample.new_logprob = std::span(found.after).subspan(next, size);
    }
    samples.push_back(sample);
    next += size;
  }
  log_->write(step, samples);
}

}  // namespace ringside::rl
