// Granted samples as jobs of a worker: prompt, seed and sampling settings, and what their rollouts
// say of them. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/group_prompts.h"
#include "rl/data/held_out_prompts.h"
#include "rl/data/prompt_set.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/worker/worker_queue.h"

namespace ringside::rl {

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

// What the rollout of a job says before anything is sampled: its id, its sample's names and its
// sampling settings. version: that its first token is sampled under.
bridge::Rollout rollout_of_job(const std::string& worker_id, const SampleJob& job, int64_t version);

// The rollout of a failed sample: finish_reason error, no completion.
bridge::Rollout failed_rollout(const std::string& worker_id, const SampleJob& job,
                               const std::vector<int64_t>& prompt_ids, int64_t version);

}  // namespace ringside::rl
