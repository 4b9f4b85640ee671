#include "rl/evaluation.h"

#include <algorithm>
#include <stdexcept>

#include "rl/data/data_order.h"
#include "rl/log/log.h"

namespace ringside::rl {
namespace {

// Prompts sampled as one batch.
constexpr std::size_t kBatch = 256;

}  // namespace

std::unique_ptr<Evaluation> Evaluation::make(const Config& config, const engine::ModelConfig& model) {
  return config.eval.every > 0 ? std::unique_ptr<Evaluation>(new Evaluation(config, model)) : nullptr;
}

Evaluation::Evaluation(const Config& config, const engine::ModelConfig& model)
    : every_(config.eval.every),
      temperature_(config.eval.temperature),
      sampler_(config, model),
      prompts_(load_prompt_set(config.data.eval, config, sampler_.tokenizer()).prompts) {
  if (config.eval.max_prompts > 0 && config.eval.max_prompts < static_cast<int64_t>(prompts_.size())) {
    prompts_.resize(config.eval.max_prompts);
  }
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    seeds_.push_back(mix_seed({static_cast<uint64_t>(config.seed), i}));
  }
}

double Evaluation::mean_reward(const engine::Decoder& decoder) const {
  double sum = 0.0;
  int64_t count = 0;
  std::string failure;
  for (std::size_t begin = 0; begin < prompts_.size(); begin += kBatch) {
    const std::size_t end = std::min(prompts_.size(), begin + kBatch);
    const std::vector<Prompt> prompts(prompts_.begin() + begin, prompts_.begin() + end);
    const std::vector<uint64_t> seeds(seeds_.begin() + begin, seeds_.begin() + end);
    for (const ScoredCompletion& scored : sampler_.sample(decoder, prompts, seeds, temperature_)) {
      if (scored.scores.failure.empty()) {
        sum += scored.scores.total;
        ++count;
      } else {
        failure = scored.scores.failure;
      }
    }
  }
  if (count == 0) {
    throw std::runtime_error("evaluation: no completion could be scored: " + failure);
  }
  if (!failure.empty()) {
    log::warn("evaluation: " + std::to_string(prompts_.size() - count) + " of " + std::to_string(prompts_.size()) +
              " completions have no reward and are left out: " + failure);
  }
  return sum / static_cast<double>(count);
}

}  // namespace ringside::rl
