// Held-out prompts of a run: those of every set that it evaluates on. Torch-free.
//
// They are numbered from 0 through all sets, in the order of eval_sets(). The trainer and its
// workers read the same files, so a number names the same prompt everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/eval_sets.h"
#include "rl/data/text_data.h"

namespace ringside::rl {

struct HeldOutSet {
  EvalSet set;
  std::vector<Prompt> prompts;  // the first eval.max_prompts of its files (0 = all)
};

class HeldOutPrompts {
 public:
  // Of no set.
  HeldOutPrompts() = default;
  // Reads the files of eval_sets(config).
  // Throws: as load_prompt_set.
  HeldOutPrompts(const Config& config, const engine::Tokenizer& tokenizer);

  struct Place {
    std::size_t set = 0;    // index in sets()
    std::size_t index = 0;  // of the prompt in its set
  };

  const std::vector<HeldOutSet>& sets() const { return sets_; }
  // Number of prompts in all sets.
  int64_t size() const;
  // Throws: std::out_of_range.
  Place place_of(int64_t number) const;
  const Prompt& prompt(const Place& place) const { return sets_[place.set].prompts[place.index]; }

 private:
  std::vector<HeldOutSet> sets_;
};

// The held-out prompts that workers make samples of: with eval.by workers all, otherwise none.
// Throws: as HeldOutPrompts.
HeldOutPrompts held_out_of_workers(const Config& config, const engine::Tokenizer& tokenizer);

// Seed of a completion of a held-out prompt, by the prompt's index in its set. Sample 0 has the
// seed that it has alone, whatever the number of samples.
uint64_t held_out_seed(const Config& config, std::size_t index, int64_t sample);

// Sampling settings as rollouts and requests to servers state them.
struct StatedSampling {
  double temperature = 1.0;  // > 0
  double top_p = 1.0;
  int64_t top_k = 0;
  bool operator==(const StatedSampling&) const = default;
};
// The most likely token at each place, whatever the temperature.
inline constexpr StatedSampling kGreedySampling{1.0, 1.0, 1};
// Of training samples.
StatedSampling stated_sampling(const Config& config);
// Of held-out prompts: eval.temperature in the place of rollout.temperature. Greedy sampling is
// stated as top_k 1 at temperature 1.
StatedSampling held_out_sampling(const Config& config);

}  // namespace ringside::rl
