#include "tools/dry_run/small_config.h"

#include <algorithm>
#include <numeric>

#include "rl/config/enums.h"
#include "rl/config/schema.h"
#include "rl/config/task.h"
#include "rl/config/unread_keys.h"

namespace ringside::tools {
namespace {

constexpr int64_t kPromptTokens = 64;
constexpr int64_t kImageTokens = 64;  // of a prompt's images, and of their places
constexpr int64_t kCompletionTokens = 16;
constexpr int64_t kMicroBatchTokens = 256;
constexpr int64_t kPrompts = 4;
constexpr int64_t kGroup = 4;
constexpr int64_t kDocuments = 8;
constexpr int64_t kEvalPrompts = 4;
constexpr int64_t kWorkers = 2;
constexpr double kCollectiveTimeoutS = 60.0;

void at_most(int64_t& value, int64_t limit) { value = std::min(value, limit); }

void shrink_ranks(rl::ParallelConfig& parallel, int64_t max_ranks) {
  while (parallel.world_size() > max_ranks) {
    int64_t* largest =
        std::max({&parallel.data_parallel_replicate_size, &parallel.data_parallel_shard_size,
                  &parallel.ringattn_parallel_size, &parallel.ulysses_parallel_size,
                  &parallel.context_parallel_size, &parallel.pipeline_parallel_size,
                  &parallel.tensor_parallel_size},
                 [](const int64_t* a, const int64_t* b) { return *a < *b; });
    if (*largest <= 2) {
      return;
    }
    *largest = 2;
  }
}

// The ranks of a copy of the model that divide its experts.
void shrink_experts(rl::ParallelConfig& parallel) {
  const int64_t copies = std::max<int64_t>(1, parallel.data_parallel_replicate_size);
  parallel.expert_parallel_size =
      std::gcd(parallel.expert_parallel_size,
               parallel.world_size() / copies / parallel.pipeline_parallel_size);
}

// images: prompts have some. They are not truncated.
void shrink_rollouts(rl::RolloutConfig& rollout, bool images) {
  at_most(rollout.prompts_per_step, kPrompts);
  at_most(rollout.group_size, kGroup);
  at_most(rollout.max_prompt_tokens, kPromptTokens + (images ? kImageTokens : 0));
  at_most(rollout.max_completion_tokens, kCompletionTokens);
  at_most(rollout.num_workers, kWorkers);
  rollout.worker_threads = 1;
  rollout.server = rl::RolloutServer::kEmbedded;
  rollout.harness = "";  // an agent may call tools that are not here
  rollout.environment = "";
  rollout.environment_options = "";
  rollout.harness_options = {};
  rollout.stop = "";
  rollout.straggler_timeout_s = 0;  // the dry run's rollouts are recorded
  rollout.min_group_size = 2;
}

void shrink_algorithm(rl::Config& config) {
  rl::AlgorithmConfig& algorithm = config.algorithm;
  at_most(algorithm.reward.overlong_buffer_tokens, config.rollout.max_completion_tokens / 2);
  at_most(algorithm.reference_update_every, 1);
  at_most(algorithm.critic.warmup_steps, 1);
  at_most(algorithm.dynamic_sampling_rounds, 2);
}

void shrink_train(rl::Config& config) {
  config.train.steps = kDryRunSteps;
  config.train.epochs = 0;
  config.train.threads = 1;
  at_most(config.train.tokens_per_micro_batch, kMicroBatchTokens);
  at_most(config.train.batch_size, kDocuments);
  const bool samples = rl::samples_completions(config);
  at_most(config.train.num_mini_batches,
          samples ? config.rollout.prompts_per_step * config.rollout.group_size
                  : config.train.batch_size);
  if (!config.lora.adapters.empty()) {  // a step may have one group for an adapter
    at_most(config.train.num_mini_batches, config.rollout.group_size);
  }
  const int64_t image_tokens = config.data.image_key.empty() ? 0 : kImageTokens;
  at_most(config.data.max_length, kPromptTokens + image_tokens + kCompletionTokens);
  config.data.on_overlong = rl::OnOverlong::kTruncate;
  at_most(config.model.mlp_tile_tokens, kMicroBatchTokens / 4);
  at_most(config.optimizer.warmup_steps, 1);
}

void shrink_outputs(rl::Config& config) {
  config.checkpoint.every = 1;
  at_most(config.eval.every, 1);
  config.eval.max_prompts = kEvalPrompts;
  config.log.progress = rl::ProgressStyle::kLines;
}

}  // namespace

rl::Config small_config(const rl::Config& config, int64_t max_ranks) {
  rl::Config small = config;
  shrink_ranks(small.parallel, max_ranks);
  shrink_experts(small.parallel);
  small.parallel.collective_timeout_s =
      std::min(small.parallel.collective_timeout_s, kCollectiveTimeoutS);
  at_most(small.sp.heads_k_stride, 1);
  if (small.sp.virtual_ranks > 0) {
    small.sp.virtual_ranks = small.parallel.sequence_parallel_size();
  }
  small.model.device = rl::DeviceKind::kCpu;
  small.model.init = rl::ModelInit::kRandom;
  at_most(small.lora.rank, 4);
  small.lora.path = "";
  small.bridge = {};
  shrink_rollouts(small.rollout, !small.data.image_key.empty());
  shrink_algorithm(small);
  shrink_train(small);
  shrink_outputs(small);
  rl::reset_unread_keys(small);
  return small;
}

std::vector<std::string> describe_changes(rl::Config from, rl::Config to) {
  const auto before = rl::fields_of(from), after = rl::fields_of(to);
  const auto shown = [](const rl::Slot& slot) {
    const std::string text = rl::value_text(slot);
    return text.empty() ? "\"\"" : text;
  };
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::string old_value = shown(before[i].slot), new_value = shown(after[i].slot);
    if (old_value != new_value) {
      lines.push_back(before[i].key + ": " + old_value + " -> " + new_value);
    }
  }
  return lines;
}

}  // namespace ringside::tools
