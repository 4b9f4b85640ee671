#include "rl/worker/session_jobs.h"

#include <filesystem>
#include <random>
#include <utility>

#include "rl/sampling/prompt_scorer.h"
#include "rl/setup/shared_settings.h"

namespace ringside::rl {
namespace {

// A name that no other client can guess, because it is the key to the session.
std::string session_name(const bridge::GrantedSample& sample) {
  std::random_device random;
  std::string name = std::to_string(sample.group_id) + "-" + std::to_string(sample.sample_index);
  for (int i = 0; i < 4; ++i) {
    name += "-" + std::to_string(random());
  }
  return name;
}

}  // namespace

SessionJobs::SessionJobs(const Config& config, std::string worker_id,
                         const engine::ModelConfig& model)
    : config_(config),
      worker_id_(std::move(worker_id)),
      model_(model),
      tokenizer_(
          engine::Tokenizer::load(std::filesystem::path(config.model.path) / "tokenizer.json")),
      stops_(stop_ids(config, model, tokenizer_)),
      jobs_(config),
      records_(config.data.train) {
  for (const HeldOutSet& set : jobs_.held_out().sets()) {
    held_out_records_.emplace_back(set.set.files);
  }
}

std::shared_ptr<Session> SessionJobs::session_of(const bridge::GrantedSample& sample) {
  const SampleJob job = jobs_.of(sample);
  const SessionLimits limits{.max_turns = config_.rollout.harness_options.max_turns,
                             .max_new_tokens = config_.rollout.max_completion_tokens,
                             .max_tokens = engine::num_positions(model_),
                             .vocab_size = model_.vocab_size};
  RecordSet& records = job.is_held_out()
                           ? held_out_records_[jobs_.held_out().place_of(sample.held_out).set]
                           : records_;
  return std::make_shared<Session>(session_name(sample), sample, records.record(job.prompt.record),
                                   limits, job.seed, job.sampling);
}

bridge::Rollout SessionJobs::rollout_of(const Session& session, int64_t version) {
  bridge::Rollout rollout = failed_rollout(worker_id_, jobs_.of(session.sample()), {}, version);
  session.write(rollout);
  warn_of_failures({&rollout, 1});
  return rollout;
}

void SessionJobs::check_harness() {
  if (harness_ != nullptr) {
    harness_->check();
  }
}

bridge::Settings SessionJobs::shared_settings() const {
  return rl::shared_settings(config_, model_, jobs_.prompts(), jobs_.held_out(), stops_);
}

}  // namespace ringside::rl
