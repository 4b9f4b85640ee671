// Common parts of all rollout workers: options of the link to the trainer, prompt and seed of a
// granted sample, and the rollout made from its completion.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/group_prompts.h"
#include "rl/data/held_out_prompts.h"
#include "rl/data/prompt_set.h"
#include "rl/sampling/prompt_scorer.h"
#include "rl/worker/link_events.h"
#include "rollout_bridge/protocol/settings.h"
#include "rollout_bridge/worker/worker_endpoint.h"
#include "rollout_bridge/worker/worker_queue.h"

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

// Prompt, seed and sampling settings of a granted sample.
struct SampleJob {
  bridge::GrantedSample sample;
  Prompt prompt;
  // The same on every worker: from (config.seed, group, sample, attempt), or held_out_seed().
  uint64_t seed = 0;
  StatedSampling sampling{};
  bool is_greedy = false;  // the last sample of a group for estimator remax

  // Whether nobody reads its log-probs.
  bool is_only_scored() const { return is_held_out() || is_greedy; }
  bool is_held_out() const { return sample.held_out >= 0; }
};

class SampleJobs {
 public:
  // Reads config.data.train as load_prompt_set does, with the tokenizer of config.model.path, and
  // held_out_of_workers().
  // Throws: what load_prompt_set throws.
  explicit SampleJobs(const Config& config);
  // The job of a granted sample; its prompt is that of the group in the trainer's data order, or
  // the held-out one.
  // Throws: std::out_of_range for a held-out prompt that does not exist.
  // Thread safety: none.
  SampleJob of(const bridge::GrantedSample& sample);
  const PromptSet& prompts() const { return prompts_; }
  const HeldOutPrompts& held_out() const { return held_out_; }

 private:
  SampleJobs(const Config& config, const engine::Tokenizer& tokenizer);

  Config config_;
  PromptSet prompts_;
  GroupPrompts order_;
  HeldOutPrompts held_out_;
};

// The rollout of one job. `versions` cover the completion. If a reward is unavailable,
// finish_reason is error, `failure` says why (its beginning), and there is nothing to train
// on: the trainer retries the sample, and after the last retry accepts it unscored.
bridge::Rollout make_rollout(const std::string& worker_id, const SampleJob& job,
                             const ScoredCompletion& scored,
                             std::vector<bridge::VersionSpan> versions);

// Logs one warning about those of a batch that have a `failure`, if there are any.
void warn_of_failures(std::span<const bridge::Rollout> rollouts);

// The rollout of a failed sample: finish_reason error, no completion.
bridge::Rollout failed_rollout(const std::string& worker_id, const SampleJob& job,
                               const std::vector<int64_t>& prompt_ids, int64_t version);

}  // namespace ringside::rl
