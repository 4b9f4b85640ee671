#include "rl/data/training_batch.h"

#include <stdexcept>
#include <string>

#include "rl/algorithm/advantages.h"
#include "rl/algorithm/loss_weights.h"
#include "sp/layout/range.h"

namespace ringside::rl {
namespace {

bool is_loss_token(const bridge::Rollout& rollout, std::size_t i, const AlgorithmConfig& config) {
  if (config.mask_truncated && rollout.finish_reason == bridge::FinishReason::kLength) {
    return false;
  }
  return rollout.loss_mask.empty() || rollout.loss_mask[i] != 0;
}

int64_t count_loss_tokens(const bridge::Rollout& rollout, const AlgorithmConfig& config) {
  int64_t n = 0;
  for (std::size_t i = 0; i < rollout.completion_ids.size(); ++i) {
    n += is_loss_token(rollout, i, config) ? 1 : 0;
  }
  return n;
}

void check_rollout(const bridge::Rollout& rollout) {
  if (rollout.top_p != 1.0F || rollout.top_k != 0) {
    throw std::invalid_argument("rollout " + rollout.rollout_id + " was sampled with top_p " +
                                std::to_string(rollout.top_p) + " and top_k " + std::to_string(rollout.top_k) +
                                ": its log-probs cannot be reproduced without the sampler's support mask");
  }
}

void check_groups(std::span<const bridge::Rollout> rollouts, int64_t group_size) {
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    const std::size_t first = i - i % static_cast<std::size_t>(group_size);
    if (rollouts[i].group_id != rollouts[first].group_id || first + group_size > rollouts.size()) {
      throw std::invalid_argument("rollout " + rollouts[i].rollout_id +
                                  " is not part of a whole group of " + std::to_string(group_size));
    }
  }
}

sp::Document make_document(const bridge::Rollout& rollout, int64_t sample, double advantage, double weight,
                           const AlgorithmConfig& config) {
  sp::Document document;
  document.ids = rollout.prompt_ids;
  document.ids.insert(document.ids.end(), rollout.completion_ids.begin(), rollout.completion_ids.end());
  const auto prompt_tokens = static_cast<int64_t>(rollout.prompt_ids.size());
  document.entries = sp::blank_entries(count_loss_tokens(rollout, config));
  std::size_t entry = 0;
  for (std::size_t i = 0; i < rollout.completion_ids.size(); ++i) {
    if (!is_loss_token(rollout, i, config)) {
      continue;
    }
    document.entries.source[entry] = prompt_tokens + static_cast<int64_t>(i) - 1;
    document.entries.target[entry] = rollout.completion_ids[i];
    document.entries.sample[entry] = sample;
    document.entries.rollout_logprob[entry] = rollout.logprobs[i];
    document.entries.old_logprob[entry] = rollout.logprobs[i];
    document.entries.advantage[entry] = advantage;
    document.entries.weight[entry] = weight;
    document.entries.temperature[entry] = rollout.temperature;
    ++entry;
  }
  document.ids.pop_back();  // the last token is only ever a target
  return document;
}

}  // namespace

double total_reward(const bridge::Rollout& rollout) {
  double sum = 0.0;
  for (const auto& [name, value] : rollout.rewards) {
    sum += value;
  }
  return sum;
}

std::vector<std::vector<sp::Document>> make_mini_batches(std::span<const bridge::Rollout> rollouts,
                                                         const Config& config) {
  check_groups(rollouts, config.rollout.group_size);
  std::vector<double> rewards;
  std::vector<int64_t> loss_tokens;
  for (const bridge::Rollout& rollout : rollouts) {
    check_rollout(rollout);
    rewards.push_back(total_reward(rollout));
    loss_tokens.push_back(count_loss_tokens(rollout, config.algorithm));
  }
  const auto advantages =
      group_advantages(rewards, config.rollout.group_size, config.algorithm.advantage);
  // 0 stands for the longest completion there can be, as in TRL's dr_grpo.
  const double divisor = config.algorithm.loss_divisor > 0
                             ? config.algorithm.loss_divisor
                             : static_cast<double>(config.rollout.max_completion_tokens);
  const int64_t num_mini_batches = config.train.num_mini_batches;
  std::vector<std::vector<sp::Document>> mini_batches(num_mini_batches);
  for (int64_t b = 0; b < num_mini_batches; ++b) {
    const sp::Range part = sp::even_part(static_cast<int64_t>(rollouts.size()), num_mini_batches, b);
    const auto weights =
        loss_weights(std::span(loss_tokens).subspan(part.begin, part.size()),
                     config.algorithm.loss_aggregation, divisor);
    for (int64_t i = part.begin; i < part.end; ++i) {
      mini_batches[b].push_back(make_document(rollouts[i], i, advantages[i],
                                              weights[i - part.begin], config.algorithm));
    }
  }
  return mini_batches;
}

sp::Document make_scored_document(std::vector<int64_t> ids, int64_t first_target, double weight) {
  const auto length = static_cast<int64_t>(ids.size());
  if (first_target < 1 || first_target > length) {
    throw std::invalid_argument("first target " + std::to_string(first_target) +
                                " of a document of " + std::to_string(length) + " tokens");
  }
  sp::Document document;
  document.entries = sp::blank_entries(length - first_target);
  for (int64_t t = first_target; t < length; ++t) {
    document.entries.source[t - first_target] = t - 1;
    document.entries.target[t - first_target] = ids[t];
    document.entries.weight[t - first_target] = weight;
  }
  document.ids = std::move(ids);
  document.ids.pop_back();
  return document;
}

}  // namespace ringside::rl
