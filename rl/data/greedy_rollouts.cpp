#include "rl/data/greedy_rollouts.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "rl/config/adapter_names.h"
#include "rl/config/record_choices.h"
#include "rl/config/task.h"

namespace ringside::rl {

bool is_greedy(const bridge::Rollout& rollout, const Config& config) {
  return has_greedy_sample(config) && rollout.sample_index == config.rollout.group_size;
}

TrainedAndGreedy without_greedy(std::vector<bridge::Rollout> rollouts, const Config& config,
                                std::span<const int64_t> kinds) {
  if (!kinds.empty() && kinds.size() != rollouts.size()) {
    throw std::invalid_argument(std::to_string(kinds.size()) + " kinds of records for " +
                                std::to_string(rollouts.size()) + " rollouts");
  }
  if (!has_greedy_sample(config)) {
    return {std::move(rollouts), {}, {kinds.begin(), kinds.end()}};
  }
  const auto size = static_cast<std::size_t>(sampled_group_size(config));
  TrainedAndGreedy step;
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    const bool last = i % size + 1 == size;
    if (last != is_greedy(rollouts[i], config)) {
      throw std::invalid_argument("rollout " + rollouts[i].rollout_id + " is sample " +
                                  std::to_string(rollouts[i].sample_index) + " at place " +
                                  std::to_string(i % size) +
                                  " of its group, whose last one is greedy");
    }
    if (!last && !kinds.empty()) {
      step.kinds.push_back(kinds[i]);
    }
    (last ? step.greedy : step.trained).push_back(std::move(rollouts[i]));
  }
  if (step.greedy.size() * (size - 1) != step.trained.size()) {
    throw std::invalid_argument(std::to_string(rollouts.size()) +
                                " rollouts are not whole groups of " + std::to_string(size));
  }
  return step;
}

std::vector<TrainedAndGreedy> parts_by_policy(TrainedAndGreedy step, const Config& config) {
  const std::size_t adapters = adapter_names(config.lora).size();
  std::vector<TrainedAndGreedy> parts(std::max<std::size_t>(adapters, 1));
  if (adapters == 0) {
    parts.front() = std::move(step);
    return parts;
  }
  if (step.kinds.size() != step.trained.size()) {
    throw std::invalid_argument("rollouts for several adapters without the kinds of their records");
  }
  const std::size_t group = step.greedy.empty() ? 0 : step.trained.size() / step.greedy.size();
  for (std::size_t i = 0; i < step.trained.size(); ++i) {
    TrainedAndGreedy& part =
        parts.at(static_cast<std::size_t>(adapter_of_kind(step.kinds[i], config)));
    part.kinds.push_back(step.kinds[i]);
    part.trained.push_back(std::move(step.trained[i]));
    if (group > 0 && i % group == 0) {
      part.greedy.push_back(std::move(step.greedy[i / group]));
    }
  }
  return parts;
}

std::vector<bridge::Rollout> with_greedy(std::span<const bridge::Rollout> trained,
                                         std::span<const bridge::Rollout> greedy) {
  std::vector<bridge::Rollout> all;
  const std::size_t size = greedy.empty() ? 0 : trained.size() / greedy.size();
  for (std::size_t g = 0; g < greedy.size(); ++g) {
    const auto group = trained.subspan(g * size, size);
    all.insert(all.end(), group.begin(), group.end());
    all.push_back(greedy[g]);
  }
  return all;
}

}  // namespace ringside::rl
