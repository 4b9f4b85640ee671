#include "rl/config/batch_arithmetic.h"

#include <algorithm>

#include "rl/config/task.h"

namespace ringside::rl {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string count(int64_t n, const std::string& noun) {
  const bool sibilant = noun.ends_with("h");
  return std::to_string(n) + " " + noun + (n == 1 ? "" : sibilant ? "es" : "s");
}

// How many micro-batches a mini-batch is if all its rollouts have the greatest length.
std::string describe_filling(const Config& config, const BatchArithmetic& batch) {
  if (batch.max_tokens_per_sample == 0) {
    return "";  // the lengths of documents stand in their file
  }
  const int64_t ranks = std::max<int64_t>(1, config.parallel.data_parallel_replicate_size) *
                        config.parallel.data_parallel_shard_size;
  const int64_t tokens = batch.samples_per_mini_batch * batch.max_tokens_per_sample;
  const int64_t each = ceil_div(tokens, ranks * config.train.tokens_per_micro_batch);
  return "; a mini-batch of the longest rollouts fills " + count(each, "micro-batch") +
         (ranks > 1 ? " on each of " + std::to_string(ranks) + " data-parallel ranks" : "");
}

std::string describe_stragglers(const RolloutConfig& rollout) {
  if (rollout.straggler_timeout_s == 0) {
    return "";
  }
  return "; it goes on without completions that take longer than " +
         text_of(rollout.straggler_timeout_s) + " s, of prompts with " +
         std::to_string(rollout.min_group_size) + " or more";
}

}  // namespace

BatchArithmetic batch_arithmetic(const Config& config) {
  const bool samples = samples_completions(config);
  const auto& rollout = config.rollout;
  const auto& parallel = config.parallel;
  BatchArithmetic batch;
  batch.samples_per_step =
      samples ? rollout.prompts_per_step * rollout.group_size : config.train.batch_size;
  batch.samples_per_mini_batch = ceil_div(batch.samples_per_step, config.train.num_mini_batches);
  batch.optimizer_steps_per_step =
      config.train.num_mini_batches * (samples ? config.algorithm.num_iterations : 1);
  batch.optimizer_steps = batch.optimizer_steps_per_step * config.train.steps;
  batch.samples = batch.samples_per_step * config.train.steps;
  if (samples) {
    batch.max_tokens_per_sample = rollout.max_prompt_tokens + rollout.max_completion_tokens;
    batch.max_tokens_per_step = batch.max_tokens_per_sample * batch.samples_per_step;
  }
  batch.sequence_parallel_size = parallel.sequence_parallel_size();
  batch.world_size = parallel.world_size();
  return batch;
}

std::vector<std::string> describe_batch(const Config& config) {
  const bool samples = samples_completions(config);
  const std::string unit = samples ? "rollout" : learns_preferences(config) ? "pair" : "document";
  const BatchArithmetic batch = batch_arithmetic(config);
  const auto& parallel = config.parallel;
  std::vector<std::string> lines;
  if (!samples) {
    lines.push_back("a step: " + count(batch.samples_per_step, unit));
  } else {
    lines.push_back("a step: " + count(config.rollout.prompts_per_step, "prompt") + " x " +
                    count(config.rollout.group_size, "completion") + " = " +
                    count(batch.samples_per_step, "rollout") + ", at most " +
                    count(batch.max_tokens_per_step, "token") +
                    describe_stragglers(config.rollout));
  }
  lines.push_back("an optimizer step: at most " + count(batch.samples_per_mini_batch, unit) + "; " +
                  count(batch.optimizer_steps_per_step, "optimizer step") + " a step (" +
                  (samples ? count(config.algorithm.num_iterations, "iteration") + " x " : "") +
                  count(config.train.num_mini_batches, "mini-batch") + ")");
  lines.push_back("the run: " + count(config.train.steps, "step") + " = " +
                  count(batch.optimizer_steps, "optimizer step") + ", " +
                  count(batch.samples, unit));
  lines.push_back(
      "a micro-batch: " + count(config.train.tokens_per_micro_batch, "token") + ", " +
      count(ceil_div(config.train.tokens_per_micro_batch, batch.sequence_parallel_size), "token") +
      " a rank" + describe_filling(config, batch));
  const std::string axes =
      parallel.context_parallel_size > 0
          ? std::to_string(parallel.context_parallel_size) + " context parallel"
          : "ring " + std::to_string(parallel.ringattn_parallel_size) + " x ulysses " +
                std::to_string(parallel.ulysses_parallel_size);
  const std::string shards = parallel.data_parallel_shard_size > 1
                                 ? std::to_string(parallel.data_parallel_shard_size) + " shards x "
                                 : "";
  lines.push_back("ranks: " +
                  (parallel.pipeline_parallel_size > 1
                       ? "pipeline " + std::to_string(parallel.pipeline_parallel_size) + " x "
                       : "") +
                  count(std::max<int64_t>(1, parallel.data_parallel_replicate_size), "replica") +
                  " x " + shards + axes +
                  (parallel.tensor_parallel_size > 1
                       ? " x tensor " + std::to_string(parallel.tensor_parallel_size)
                       : "") +
                  " = " + count(batch.world_size, "rank"));
  return lines;
}

}  // namespace ringside::rl
