// Rewards: functions from a completion to a score, found by the name that rollout.reward gives.
// Torch-free.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

// What a reward may look at. The views need to live only for the length of the call.
struct RewardInput {
  std::string_view prompt;
  std::string_view
      completion;  // decoded without special tokens; any bytes whatever, it is a model's output
  std::string_view answer;  // of the data set
};

// Pure: the same score for the same input, from any thread, whatever the completion holds; never
// throws.
using Reward = std::function<double(const RewardInput&)>;

struct RewardOptions {
  std::string
      separator;     // the answer is what follows its last occurrence; "" = the whole completion
  std::string stop;  // text that ends a completion and is no part of the answer; "" = none
};

// The reward of that name. Throws std::invalid_argument that lists the names there are.
Reward make_reward(std::string_view name, const RewardOptions& options);

// In alphabetical order; the views live as long as the program.
std::vector<std::string_view> reward_names();

}  // namespace ringside::rl
