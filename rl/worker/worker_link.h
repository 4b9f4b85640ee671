// Common parts of all rollout workers: options of the link to the trainer, and the rollout made
// from a sample's completion.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/sampling/prompt_scorer.h"
#include "rl/worker/link_events.h"
#include "rl/worker/sample_jobs.h"
#include "rollout_bridge/protocol/settings.h"
#include "rollout_bridge/worker/worker_endpoint.h"

namespace ringside::rl {

// Batch size of an embedded worker: its share of a step's groups among rollout.num_workers, so that
// a single worker samples a whole step at once.
int64_t samples_per_batch(const Config& config);

// Number of samples that the worker requests at a time. Embedded: one batch; two if asynchronous,
// so that the next batch is ready. With a server: the concurrent requests, a quarter more, and one
// group, because groups are granted whole.
int64_t wanted_samples(const Config& config);

// Endpoint options: the trainer's addresses (from the configuration or from the endpoint file),
// keys, capacity, and `shared`, which the trainer compares with its own settings.
// Blocks: until the endpoint file exists.
// Throws: std::runtime_error when asked to stop before, and when bridge.curve.trainer_public holds
// this worker's secret key; what wait_for_trainer, read_secret_key and read_public_key throw.
bridge::WorkerOptions worker_options(const Config& config, const WorkerSettings& settings,
                                     bridge::Settings shared);

// The rollout of one job. `versions` cover the completion. If a reward is unavailable,
// finish_reason is error, `failure` says why (its beginning), and there is nothing to train
// on: the trainer retries the sample, and after the last retry accepts it unscored.
bridge::Rollout make_rollout(const std::string& worker_id, const SampleJob& job,
                             const ScoredCompletion& scored,
                             std::vector<bridge::VersionSpan> versions);

// Logs one warning about those of a batch that have a `failure`, if there are any.
void warn_of_failures(std::span<const bridge::Rollout> rollouts);

}  // namespace ringside::rl
