#include "rl/trainer/step_samples.h"

#include "rl/setup/sequence_parallel.h"
#include "rl/step/score_documents.h"

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
                         const engine::ModelRunner& policy, const std::filesystem::path& run_dir)
    : config_(config), ranks_(ranks), policy_(policy) {
  if (ranks.is_main() && config.log.samples > 0) {
    log_.emplace(open_sample_log(run_dir, config.model.path));
  }
}

std::vector<double> StepSamples::logprobs() const {
  if (documents_.empty()) {
    return {};
  }
  const ScoreOptions options{config_.train.tokens_per_micro_batch, sequence_options(config_.sp)};
  std::vector<double> all;
  for (const auto& of_document :
       score_documents(policy_, documents_, ranks_.mesh(), ranks_.comms(), options, temperature_)) {
    all.insert(all.end(), of_document.begin(), of_document.end());
  }
  return all;
}

void StepSamples::score(std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
                        const StepAdvantages& advantages, RolloutSource* source) {
  picked_.clear();
  documents_.clear();
  temperature_.clear();
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
    sample.advantage =
        std::span(advantages.advantage).subspan(tokens.begin, tokens.end - tokens.begin);
    picked_.push_back({sample, tokens});
    for (sp::Document& document : documents_of(batch, tokens)) {
      documents_.push_back(std::move(document));
    }
    temperature_.insert(temperature_.end(), batch.columns.temperature.begin() + tokens.begin,
                        batch.columns.temperature.begin() + tokens.end);
  }
  before_ = logprobs();
}

void StepSamples::write(int64_t step) {
  const std::vector<double> after = logprobs();
  if (!log_ || picked_.empty()) {
    return;
  }
  std::vector<LoggedSample> samples;
  int64_t next = 0;
  for (const Picked& picked : picked_) {
    const int64_t size = picked.tokens.end - picked.tokens.begin;
    LoggedSample sample = picked.sample;
    sample.old_logprob = std::span(before_).subspan(next, size);
    sample.new_logprob = std::span(after).subspan(next, size);
    samples.push_back(sample);
    next += size;
  }
  log_->write(step, samples);
}

}  // namespace ringside::rl
