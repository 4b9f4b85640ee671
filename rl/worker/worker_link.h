// What every rollout worker has in common, whatever samples for it: how it finds the trainer, which
// prompt and seed a granted sample is, and how its completion becomes a rollout on the wire.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/data_order.h"
#include "rl/data/prompt_set.h"
#include "rl/sampling/prompt_scorer.h"
#include "rl/worker/link_events.h"
#include "rollout_bridge/protocol/settings.h"
#include "rollout_bridge/worker/worker_endpoint.h"
#include "rollout_bridge/worker/worker_queue.h"

namespace ringside::rl {

// How many samples an embedded worker makes in one batch: its share of a step's groups among
// rollout.num_workers, so that a worker alone makes a whole step at once.
int64_t samples_per_batch(const Config& config);

// How many samples the worker wants granted at a time. Embedded: a batch; asynchronously two, so
// that the next one waits while one is made. With a server: what runs there at once, a quarter
// ahead, and a group, because groups are granted whole.
int64_t wanted_samples(const Config& config);

// The trainer's addresses, fixed ones of the configuration or those in the endpoint file, with
// keys, capacity and `shared`, which the trainer compares with its own. Blocks until the endpoint
// file is there. Throws std::runtime_error when asked to stop before, or on an unreadable key.
bridge::WorkerOptions worker_options(const Config& config, const WorkerSettings& settings,
                                     bridge::Settings shared);

// What a granted sample stands for.
struct SampleJob {
  bridge::GrantedSample sample;
  Prompt prompt;
  uint64_t seed = 0;  // of (config.seed, group, sample, attempt): the same one whoever samples it
};

class SampleJobs {
 public:
  // Reads config.data.train as load_prompt_set does, with the tokenizer of config.model.path, and
  // throws like it.
  explicit SampleJobs(const Config& config);
  // The prompt of group g of the trainer's data order. Not thread-safe.
  SampleJob of(const bridge::GrantedSample& sample);
  const std::vector<Prompt>& prompts() const { return prompts_; }

 private:
  uint64_t seed_;
  std::vector<Prompt> prompts_;
  DataOrder order_;
};

// The rollout of one job. `versions` cover the completion. A reward that was not to be had makes it
// finish_reason error with nothing to train on: the trainer asks for the sample again, and takes it
// unscored when that fails too often.
bridge::Rollout make_rollout(const Config& config, const std::string& worker_id,
                             const SampleJob& job, const ScoredCompletion& scored,
                             std::vector<bridge::VersionSpan> versions);

// A sample that could not be made: finish_reason error, no completion.
bridge::Rollout failed_rollout(const Config& config, const std::string& worker_id,
                               const SampleJob& job, const std::vector<int64_t>& prompt_ids,
                               int64_t version);

}  // namespace ringside::rl
