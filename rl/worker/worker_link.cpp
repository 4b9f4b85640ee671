#include "rl/worker/worker_link.h"

#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "rl/endpoint_file.h"
#include "rl/log/log.h"
#include "rollout_bridge/keys.h"

namespace ringside::rl {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};

bridge::FinishReason wire_reason(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return bridge::FinishReason::kStop;
    case engine::FinishReason::kLength:
      return bridge::FinishReason::kLength;
    case engine::FinishReason::kAborted:
      return bridge::FinishReason::kAborted;
  }
  throw std::invalid_argument("unknown finish reason");
}

bridge::Rollout rollout_of(const Config& config, const std::string& worker_id, const SampleJob& job, int64_t version) {
  bridge::Rollout r;
  r.rollout_id = std::to_string(job.group.group_id) + "/" + std::to_string(job.sample_index) + "/v" +
                 std::to_string(version) + "/" + std::to_string(job.group.attempt) + "/" + worker_id;
  r.attempt = job.group.attempt;
  r.group_id = job.group.group_id;
  r.group_size = job.group.group_size;
  r.sample_index = job.sample_index;
  r.prompt_id = job.prompt.id;
  r.temperature = static_cast<float>(config.rollout.temperature);
  r.top_p = static_cast<float>(config.rollout.top_p);
  r.top_k = static_cast<int32_t>(config.rollout.top_k);
  return r;
}

}  // namespace

int64_t samples_per_step(const Config& config) {
  return config.rollout.prompts_per_step * config.rollout.group_size;
}

bridge::WorkerOptions worker_options(const Config& config, const WorkerSettings& settings,
                                     bridge::Settings shared) {
  bridge::WorkerOptions options;
  options.settings = std::move(shared);
  options.worker_id = settings.worker_id;
  // Asynchronously a step's samples wait while another's are made: the next batch is then as large.
  options.capacity_samples = samples_per_step(config) * (config.algorithm.max_staleness > 0 ? 2 : 1);
  const CurveConfig& curve = config.bridge.curve;
  if (!curve.worker_secret.empty()) {
    options.curve = bridge::CurveClient{bridge::read_secret_key(curve.worker_secret),
                                        bridge::read_public_key(curve.trainer_public)};
  }
  if (settings.endpoint_file.empty()) {
    options.rollout_address = config.bridge.rollout_address;
    options.weights_address = config.bridge.weights_address;
    return options;
  }
  while (!settings.should_stop()) {
    if (const auto found = read_endpoint_file(settings.endpoint_file); found && !found->ended) {
      options.rollout_address = found->rollout_address;
      // A trainer that is started again may be at another port; WELCOME names its weights' address.
      options.resolve = [file = settings.endpoint_file]() -> std::optional<std::string> {
        const auto now = read_endpoint_file(file);
        return now ? std::optional(now->rollout_address) : std::nullopt;
      };
      return options;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  throw std::runtime_error("stopped before the trainer wrote " + settings.endpoint_file.string());
}

LinkEvents::LinkEvents(WorkerSettings settings) : settings_(std::move(settings)) {}

void LinkEvents::handle(const bridge::RolloutRejected& rejected) const {
  log::warn("rollout " + rejected.rollout_id + " was refused: " + rejected.reason + ", " + rejected.detail);
}

void LinkEvents::handle(const bridge::Ended& ended) {
  log::info("the trainer ended the run: " + ended.reason);
  ended_ = true;
}

void LinkEvents::handle(const bridge::Failed& failed) const {
  throw std::runtime_error("the trainer refuses this worker: " + failed.reason + ", " + failed.detail);
}

void LinkEvents::handle(const bridge::Disconnected& disconnected) {
  // A trainer that is gone may have ended the run in words that never arrived.
  const auto found = settings_.endpoint_file.empty() ? std::nullopt : read_endpoint_file(settings_.endpoint_file);
  ended_ = found && found->ended;
  log::warn("disconnected: " + disconnected.why + (ended_ ? "; the run is over" : ""));
}

SampleJobs::SampleJobs(const Config& config)
    : seed_(static_cast<uint64_t>(config.seed)),
      prompts_(read_prompts(config.data.train, config.data)),
      order_(static_cast<int64_t>(prompts_.size()), seed_, config.data.shuffle) {}

std::vector<SampleJob> SampleJobs::of(const std::vector<bridge::GrantedGroup>& groups) {
  std::vector<SampleJob> jobs;
  for (const bridge::GrantedGroup& group : groups) {
    for (const int32_t sample : group.sample_indices) {
      jobs.push_back({group, sample, prompts_[order_.at(group.group_id)],
                      mix_seed({seed_, static_cast<uint64_t>(group.group_id), static_cast<uint64_t>(sample),
                                static_cast<uint64_t>(group.attempt)})});
    }
  }
  return jobs;
}

bridge::Rollout make_rollout(const Config& config, const std::string& worker_id, const SampleJob& job,
                             const ScoredCompletion& scored, std::vector<bridge::VersionSpan> versions) {
  bridge::Rollout r = rollout_of(config, worker_id, job, versions.empty() ? -1 : versions.front().version);
  r.prompt_ids = scored.prompt_ids;
  r.completion_ids = scored.completion.ids;
  r.logprobs = scored.completion.logprobs;
  r.versions = std::move(versions);
  r.finish_reason = wire_reason(scored.completion.finish);
  r.rewards = scored.scores.raw;
  if (!scored.scores.failure.empty()) {
    log::warn("rollout " + r.rollout_id + ": " + scored.scores.failure);
    r.finish_reason = bridge::FinishReason::kError;
    r.loss_mask.assign(r.completion_ids.size(), 0);
  }
  return r;
}

bridge::Rollout failed_rollout(const Config& config, const std::string& worker_id, const SampleJob& job,
                               const std::vector<int64_t>& prompt_ids, int64_t version) {
  bridge::Rollout r = rollout_of(config, worker_id, job, version);
  r.prompt_ids = prompt_ids;
  r.finish_reason = bridge::FinishReason::kError;
  return r;
}

}  // namespace ringside::rl
