// What every rollout worker has in common, whatever samples for it: how it finds the trainer, which prompt and seed a granted
// sample is, and how its completion becomes a rollout on the wire.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/data_order.h"
#include "rl/data/text_data.h"
#include "rl/worker/prompt_scorer.h"
#include "rollout_bridge/settings.h"
#include "rollout_bridge/worker_endpoint.h"

namespace ringside::rl {

struct WorkerSettings {
  std::string worker_id;
  // Where the trainer writes its addresses; empty when the configuration's bridge.* name them.
  std::filesystem::path endpoint_file;
  // Asked between messages and batches; true leaves with BYE.
  std::function<bool()> should_stop;
};

// The samples of one step: what a synchronous trainer grants at once.
int64_t samples_per_step(const Config& config);

// The trainer's addresses, fixed ones of the configuration or those in the endpoint file, with keys, capacity and `shared`, which
// the trainer compares with its own. Blocks
// until the endpoint file is there. Throws std::runtime_error when asked to stop before, or on an unreadable key.
bridge::WorkerOptions worker_options(const Config& config, const WorkerSettings& settings, bridge::Settings shared);

// What every worker does about the events that are not work: says them, and knows when the run is over.
class LinkEvents {
 public:
  explicit LinkEvents(WorkerSettings settings);

  void handle(const bridge::RolloutRejected& rejected) const;
  void handle(const bridge::Ended& ended);
  // Throws std::runtime_error: the trainer refuses this worker for good.
  void handle(const bridge::Failed& failed) const;
  void handle(const bridge::Disconnected& disconnected);

  bool ended() const { return ended_; }
  // The run is over or the worker was asked to stop.
  bool is_over() const { return ended_ || settings_.should_stop(); }
  const WorkerSettings& settings() const { return settings_; }

 private:
  WorkerSettings settings_;
  bool ended_ = false;
};

// One sample of a granted group.
struct SampleJob {
  bridge::GrantedGroup group;
  int32_t sample_index = 0;
  Prompt prompt;
  uint64_t seed = 0;  // of (config.seed, group, sample, attempt): the same one whoever samples it
};

class SampleJobs {
 public:
  // Reads config.data.train. Throws std::runtime_error naming what does not fit.
  explicit SampleJobs(const Config& config);
  // Group g of the trainer's data order, in the order granted.
  std::vector<SampleJob> of(const std::vector<bridge::GrantedGroup>& groups);
  const std::vector<Prompt>& prompts() const { return prompts_; }

 private:
  uint64_t seed_;
  std::vector<Prompt> prompts_;
  DataOrder order_;
};

// The rollout of one job. `versions` cover the completion. A reward that was not to be had makes it finish_reason error with
// nothing to train on: the trainer asks for the sample again, and takes it unscored when that fails too often.
bridge::Rollout make_rollout(const Config& config, const std::string& worker_id, const SampleJob& job,
                             const ScoredCompletion& scored, std::vector<bridge::VersionSpan> versions);

// A sample that could not be made: finish_reason error, no completion.
bridge::Rollout failed_rollout(const Config& config, const std::string& worker_id, const SampleJob& job,
                               const std::vector<int64_t>& prompt_ids, int64_t version);

}  // namespace ringside::rl
