// Weighted rewards: parser of rollout.reward, and the weighted sum. The worker that computes
// rewards, the trainer that sums them again, and the checks of a configuration use it. Torch-free.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringside::rl {

// A reward of rollout.reward. The name of a Python function is its name in metrics too.
struct WeightedReward {
  std::string name;
  double weight = 1.0;
  std::string file = {};  // of a Python function; empty for the rewards of this program
  bool is_python() const { return !file.empty(); }
  bool operator==(const WeightedReward&) const = default;
};

// A reward's value under its name, before weights.
using NamedRewards = std::vector<std::pair<std::string, double>>;

// Parses "name" or "name * weight, name * weight", where python(FILE:FUNCTION) may stand for a
// name. White space is free. A weight is any finite number, also negative; the default is 1.
// "worker" alone is no recipe: the workers choose their rewards and names, and the plain sum
// counts.
// Throws: std::invalid_argument naming the part and its problem: an empty part, an unknown name
// (with the known ones and the nearest), a weight that is no number, or a duplicate name.
std::vector<WeightedReward> parse_rewards(std::string_view text);

// The parts of rollout.reward as they are written: between the commas that are not in parentheses,
// without white space around them. Not checked.
std::vector<std::string_view> reward_parts(std::string_view text);

// The text with change(file) for the file of each Python function.
// Throws: as parse_rewards for a python() without a file or a function, and as `change`; other
// mistakes are left.
std::string with_reward_files(const std::string& text,
                              const std::function<std::string(const std::string&)>& change);

// Whether a reward of the text reads other fields of the data than the answer.
bool reads_columns(std::string_view text);

// The weighted sum of a rollout's raw rewards.
//   - Every reward of `recipe` must be there once. A reward that only the rollout has is kept for
//     the metrics and does not count.
//   - A rollout that has none of the recipe's names gets the plain sum of its rewards: there are no
//     names for "worker", and a recorded file may have others.
//   - A rollout without any reward (finish reason error) has no total; leave it out before.
// Throws: std::invalid_argument naming a missing reward, and for a rollout without any reward.
double weighted_total(const NamedRewards& rewards, std::span<const WeightedReward> recipe);

}  // namespace ringside::rl
