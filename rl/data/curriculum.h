// Curriculum by measured difficulty: which prompts a step samples, by the mean reward of the last
// group of each. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/data_order.h"

namespace ringside::rl {

// How many prompts are in each pool.
struct PoolSizes {
  int64_t easy = 0;
  int64_t middle = 0;
  int64_t hard = 0;
  int64_t unmeasured = 0;
};

// A prompt is easy if the mean reward of its last group is at least easy_above, and hard if it is
// at most hard_below. Of each step easy_share and hard_share of the prompts are drawn from these
// two pools, without repetition; over several steps the shares are exact. The others are the next
// prompts of the data order that are in neither pool: of the middle, or not measured yet. What a
// pool lacks comes from the data order; where one pass of that has too few, from the hard pool,
// then from the easy one, then from the data order as it is.
// Step t is chosen after step t - 1 - max_staleness was measured, so the choice depends on the
// measured rewards and the seed alone: not on time, workers or ranks.
// Source: the pools of prime-rl's buffer (easy_threshold, hard_threshold), which takes easy and
// hard prompts out for good, but for a fraction at a resume.
// Thread safety: every method.
class Curriculum {
 public:
  // parts: of the data order. state: as state() returned it; "" at the start of a run.
  // Throws: std::invalid_argument without a prompt, and for more than group ids can name;
  // std::runtime_error for a state that is not of this form or of other prompts.
  Curriculum(const Config& config, const std::vector<OrderPart>& parts, const std::string& state);

  // The mean reward of the prompt's last group. Ignored for a prompt that is not there.
  void measure(int64_t prompt, double mean_reward);
  // Chooses the prompts of all steps up to `step` that have none.
  void choose(int64_t step);
  // The groups of a step, in the order in which they are trained on: its slots with their prompts.
  // Throws: std::logic_error for a step that was not chosen, or was forgotten.
  std::vector<int64_t> groups_of(int64_t step) const;
  // Forgets what was chosen for the steps up to `step`.
  void forget(int64_t step);

  // The pools as they are now.
  PoolSizes sizes() const;
  // What a checkpoint of `step` must hold, as JSON.
  std::string state(int64_t step) const;

 private:
  bool is_easy(int64_t prompt) const;
  bool is_hard(int64_t prompt) const;
  std::vector<int64_t> prompts_for(int64_t step);
  void read(const std::string& state);

  CurriculumConfig config_;
  int64_t prompts_per_step_;
  uint64_t seed_;
  int64_t size_ = 0;
  mutable std::mutex mutex_;  // guards what follows
  DataOrder order_;
  int64_t position_ = 0;  // in the data order, of the next prompt
  std::map<int64_t, double> mean_reward_;
  std::map<int64_t, std::vector<int64_t>> chosen_;  // prompts by step
  int64_t last_chosen_ = 0;
};

}  // namespace ringside::rl
