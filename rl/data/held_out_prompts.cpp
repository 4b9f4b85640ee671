#include "rl/data/held_out_prompts.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "rl/data/data_order.h"
#include "rl/data/prompt_set.h"

namespace ringside::rl {

HeldOutPrompts::HeldOutPrompts(const Config& config, const engine::Tokenizer& tokenizer) {
  for (EvalSet& set : eval_sets(config)) {
    auto prompts = load_prompt_set(set.files, config, tokenizer).prompts;
    if (config.eval.max_prompts > 0 &&
        config.eval.max_prompts < static_cast<int64_t>(prompts.size())) {
      prompts.resize(static_cast<std::size_t>(config.eval.max_prompts));
    }
    sets_.push_back({std::move(set), std::move(prompts)});
  }
}

int64_t HeldOutPrompts::size() const {
  std::size_t prompts = 0;
  for (const HeldOutSet& set : sets_) {
    prompts += set.prompts.size();
  }
  return static_cast<int64_t>(prompts);
}

HeldOutPrompts::Place HeldOutPrompts::place_of(int64_t number) const {
  auto index = static_cast<std::size_t>(number);
  for (std::size_t set = 0; number >= 0 && set < sets_.size(); ++set) {
    if (index < sets_[set].prompts.size()) {
      return {set, index};
    }
    index -= sets_[set].prompts.size();
  }
  throw std::out_of_range("held-out prompt " + std::to_string(number) + ", there are " +
                          std::to_string(size()));
}

HeldOutPrompts held_out_of_workers(const Config& config, const engine::Tokenizer& tokenizer) {
  if (config.eval.by != EvalBy::kWorkers || config.eval.every == 0) {
    return {};
  }
  return {config, tokenizer};
}

uint64_t held_out_seed(const Config& config, std::size_t index, int64_t sample) {
  const auto seed = static_cast<uint64_t>(config.seed);
  return sample == 0 ? mix_seed({seed, index})
                     : mix_seed({seed, index, static_cast<uint64_t>(sample)});
}

StatedSampling stated_sampling(const Config& config) {
  return {config.rollout.temperature, config.rollout.top_p, config.rollout.top_k};
}

StatedSampling held_out_sampling(const Config& config) {
  if (config.eval.temperature == 0.0) {
    return kGreedySampling;
  }
  return {config.eval.temperature, config.rollout.top_p, config.rollout.top_k};
}

}  // namespace ringside::rl
