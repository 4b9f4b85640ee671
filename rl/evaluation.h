// The mean reward on held-out prompts while training goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rl/config/config.h"
#include "rl/worker/prompt_sampler.h"

namespace ringside::rl {

class Evaluation {
 public:
  // nullptr when config.eval.every is 0. Throws std::runtime_error on unusable prompts or tokenizer.
  static std::unique_ptr<Evaluation> make(const Config& config, const engine::ModelConfig& model);

  bool is_due(int64_t step) const { return step % every_ == 0; }

  // The mean weighted reward of one completion per prompt of data.eval (the first eval.max_prompts; 0 = all), at
  // eval.temperature. Completions whose reward is not to be had are left out, with a warning. Not collective; blocks until
  // all are sampled and scored. Throws std::runtime_error when none could be scored.
  double mean_reward(const engine::Decoder& decoder) const;

 private:
  Evaluation(const Config& config, const engine::ModelConfig& model);

  int64_t every_;
  double temperature_;
  PromptSampler sampler_;
  std::vector<Prompt> prompts_;
  std::vector<uint64_t> seeds_;
};

}  // namespace ringside::rl
