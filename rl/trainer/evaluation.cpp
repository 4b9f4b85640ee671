#include "rl/trainer/evaluation.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "engine/models/whole_weights.h"
#include "rl/data/data_order.h"
#include "rl/report/log.h"
#include "rl/sampling/prompt_sampler.h"

namespace ringside::rl {
namespace {

// Prompts sampled as one batch.
constexpr std::size_t kBatch = 256;

}  // namespace

class HeldOutPrompts {
 public:
  HeldOutPrompts(const Config& config, const engine::ModelConfig& model);
  double mean_reward(const engine::Decoder& decoder) const;

 private:
  double temperature_;
  PromptSampler sampler_;
  std::vector<Prompt> prompts_;
  std::vector<uint64_t> seeds_;
};

HeldOutPrompts::HeldOutPrompts(const Config& config, const engine::ModelConfig& model)
    : temperature_(config.eval.temperature),
      sampler_(config, model),
      prompts_(load_prompt_set(config.data.eval, config, sampler_.tokenizer()).prompts) {
  if (config.eval.max_prompts > 0 &&
      config.eval.max_prompts < static_cast<int64_t>(prompts_.size())) {
    prompts_.resize(config.eval.max_prompts);
  }
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    seeds_.push_back(mix_seed({static_cast<uint64_t>(config.seed), i}));
  }
}

double HeldOutPrompts::mean_reward(const engine::Decoder& decoder) const {
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
    log::warn("evaluation: " + std::to_string(prompts_.size() - count) + " of " +
              std::to_string(prompts_.size()) +
              " completions have no reward and are left out: " + failure);
  }
  return sum / static_cast<double>(count);
}

Evaluation::Evaluation(TrainingRun& run) : run_(run) {
  if (run.is_main_rank() && run.config().eval.every > 0) {
    prompts_ = std::make_unique<HeldOutPrompts>(run.config(), run.decoder().config());
  }
}

Evaluation::~Evaluation() = default;

bool Evaluation::is_due(int64_t step) const {
  const EvalConfig& eval = run_.config().eval;
  return eval.every > 0 && (step == 0 ? eval.before_training : step % eval.every == 0);
}

double Evaluation::mean_reward() const {
  double reward = 0.0;
  run_.on_main_rank_with_weights(true, [&] {
    if (engine::is_sharded(run_.decoder())) {
      reward = prompts_->mean_reward(*engine::whole_copy(run_.decoder()));
    } else {
      reward = prompts_->mean_reward(run_.decoder());
    }
  });
  return reward;
}

}  // namespace ringside::rl
