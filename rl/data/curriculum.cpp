#include "rl/data/curriculum.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <stdexcept>

#include "rl/data/group_prompts.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {
namespace {

// How many of the step's prompts a share is: over the steps 1 to t the floor of t x share.
int64_t count_in_step(double share, int64_t prompts, int64_t step) {
  const auto up_to = [&](int64_t steps) {
    return static_cast<int64_t>(std::floor(share * static_cast<double>(prompts * steps) + 1e-9));
  };
  return up_to(step) - up_to(step - 1);
}

// Prompts that one step has chosen so far, each once.
class Choice {
 public:
  bool add(int64_t prompt) {
    const bool is_new = seen_.insert(prompt).second;
    if (is_new) {
      prompts.push_back(prompt);
    }
    return is_new;
  }
  // `count` prompts of the pool in a random order, or as many as it has.
  void draw(std::vector<int64_t> pool, int64_t count, uint64_t seed) {
    shuffle_items(pool, seed);
    for (auto next = pool.begin(); next != pool.end() && count > 0; ++next) {
      count -= add(*next) ? 1 : 0;
    }
  }
  int64_t size() const { return static_cast<int64_t>(prompts.size()); }

  std::vector<int64_t> prompts;

 private:
  std::set<int64_t> seen_;
};

}  // namespace

Curriculum::Curriculum(const Config& config, const std::vector<OrderPart>& parts,
                       const std::string& state)
    : config_(config.data.curriculum),
      prompts_per_step_(config.rollout.prompts_per_step),
      seed_(static_cast<uint64_t>(config.seed)),
      order_(parts, static_cast<uint64_t>(config.seed), config.data.shuffle) {
  for (const OrderPart& part : parts) {
    size_ += part.size;
  }
  constexpr int64_t kMostPrompts = bridge::kFirstHeldOutGroup / kRoundStride;
  if (size_ > kMostPrompts) {
    throw std::invalid_argument("data.curriculum: " + std::to_string(size_) +
                                " prompts; expected at most " + std::to_string(kMostPrompts));
  }
  if (!state.empty()) {
    read(state);
  }
}

bool Curriculum::is_easy(int64_t prompt) const {
  const auto found = mean_reward_.find(prompt);
  return found != mean_reward_.end() && found->second >= config_.easy_above;
}

bool Curriculum::is_hard(int64_t prompt) const {
  const auto found = mean_reward_.find(prompt);
  return found != mean_reward_.end() && found->second <= config_.hard_below;
}

void Curriculum::measure(int64_t prompt, double mean_reward) {
  const std::lock_guard lock(mutex_);
  if (prompt >= 0 && prompt < size_) {
    mean_reward_[prompt] = mean_reward;
  }
}

std::vector<int64_t> Curriculum::prompts_for(int64_t step) {
  std::vector<int64_t> easy, hard;
  for (const auto& [prompt, mean_reward] : mean_reward_) {
    if (is_easy(prompt)) {
      easy.push_back(prompt);
    } else if (is_hard(prompt)) {
      hard.push_back(prompt);
    }
  }
  const uint64_t seed = mix_seed({seed_, 0x63757272u, static_cast<uint64_t>(step)});
  Choice choice;
  choice.draw(hard, count_in_step(config_.hard_share, prompts_per_step_, step), seed);
  choice.draw(easy,
              std::min(count_in_step(config_.easy_share, prompts_per_step_, step),
                       prompts_per_step_ - choice.size()),
              seed + 1);
  for (int64_t looked_at = 0; looked_at < size_ && choice.size() < prompts_per_step_; ++looked_at) {
    const int64_t prompt = order_.at(position_++);
    if (!is_easy(prompt) && !is_hard(prompt)) {
      choice.add(prompt);
    }
  }
  choice.draw(hard, prompts_per_step_ - choice.size(), seed + 2);
  choice.draw(easy, prompts_per_step_ - choice.size(), seed + 3);
  std::vector<int64_t> prompts = std::move(choice.prompts);
  while (static_cast<int64_t>(prompts.size()) < prompts_per_step_) {  // fewer prompts than places
    prompts.push_back(order_.at(position_++));
  }
  return prompts;
}

void Curriculum::choose(int64_t step) {
  const std::lock_guard lock(mutex_);
  while (last_chosen_ < step) {
    ++last_chosen_;
    chosen_[last_chosen_] = prompts_for(last_chosen_);
  }
}

std::vector<int64_t> Curriculum::groups_of(int64_t step) const {
  const std::lock_guard lock(mutex_);
  const auto found = chosen_.find(step);
  if (found == chosen_.end()) {
    throw std::logic_error("curriculum: no prompts were chosen for step " + std::to_string(step));
  }
  std::vector<int64_t> groups;
  int64_t slot = (step - 1) * prompts_per_step_;
  for (const int64_t prompt : found->second) {
    groups.push_back(slot++ + prompt * kRoundStride);
  }
  return groups;
}

void Curriculum::forget(int64_t step) {
  const std::lock_guard lock(mutex_);
  chosen_.erase(chosen_.begin(), chosen_.upper_bound(step));
}

PoolSizes Curriculum::sizes() const {
  const std::lock_guard lock(mutex_);
  PoolSizes sizes;
  for (const auto& [prompt, mean_reward] : mean_reward_) {
    int64_t& pool = is_easy(prompt) ? sizes.easy : is_hard(prompt) ? sizes.hard : sizes.middle;
    ++pool;
  }
  sizes.unmeasured = size_ - static_cast<int64_t>(mean_reward_.size());
  return sizes;
}

std::string Curriculum::state(int64_t step) const {
  const std::lock_guard lock(mutex_);
  nlohmann::ordered_json chosen = nlohmann::ordered_json::array();
  for (auto it = chosen_.upper_bound(step); it != chosen_.end(); ++it) {
    chosen.push_back({it->first, it->second});
  }
  nlohmann::ordered_json measured = nlohmann::ordered_json::array();
  for (const auto& [prompt, mean_reward] : mean_reward_) {
    measured.push_back({prompt, mean_reward});
  }
  return nlohmann::ordered_json{{"prompts", size_},
                                {"position", position_},
                                {"last_chosen", last_chosen_},
                                {"chosen", chosen},
                                {"mean_reward", measured}}
      .dump();
}

void Curriculum::read(const std::string& state) {
  try {
    const auto json = nlohmann::json::parse(state);
    if (json.at("prompts") != size_) {
      throw std::runtime_error("is of " + json.at("prompts").dump() + " prompts, data.train has " +
                               std::to_string(size_));
    }
    position_ = json.at("position");
    last_chosen_ = json.at("last_chosen");
    for (const auto& entry : json.at("chosen")) {
      chosen_[entry.at(0)] = entry.at(1).get<std::vector<int64_t>>();
    }
    for (const auto& entry : json.at("mean_reward")) {
      mean_reward_[entry.at(0)] = entry.at(1);
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string("the checkpoint's state of data.curriculum: ") +
                             error.what());
  }
}

}  // namespace ringside::rl
