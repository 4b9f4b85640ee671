#include "rl/trainer/evaluation.h"

#include <vector>

#include "engine/models/whole_weights.h"
#include "rl/config/eval_sets.h"
#include "rl/report/log.h"
#include "rl/sampling/prompt_evaluation.h"

namespace ringside::rl {
class HeldOutPrompts {
 public:
  HeldOutPrompts(const Config& config, const engine::ModelConfig& model);
  Metrics evaluate(const engine::Decoder& decoder) const;

 private:
  struct Set {
    EvalSet set;
    std::vector<Prompt> prompts;
  };
  Metrics evaluate(const engine::Decoder& decoder, const Set& held_out) const;

  Config config_;
  PromptSampler sampler_;
  std::vector<Set> sets_;
};

HeldOutPrompts::HeldOutPrompts(const Config& config, const engine::ModelConfig& model)
    : config_(config), sampler_(config, model) {
  for (EvalSet& set : eval_sets(config)) {
    auto prompts = load_prompt_set(set.files, config, sampler_.tokenizer()).prompts;
    if (config.eval.max_prompts > 0 &&
        config.eval.max_prompts < static_cast<int64_t>(prompts.size())) {
      prompts.resize(config.eval.max_prompts);
    }
    sets_.push_back({std::move(set), std::move(prompts)});
  }
}

Metrics HeldOutPrompts::evaluate(const engine::Decoder& decoder, const Set& held_out) const {
  const PromptEvaluation found = evaluate_prompts(sampler_, decoder, held_out.prompts, config_);
  if (found.unscored > 0) {
    log::warn("evaluation on " + held_out.set.key + ": " + std::to_string(found.unscored) + " of " +
              std::to_string(static_cast<int64_t>(held_out.prompts.size()) * config_.eval.samples) +
              " completions have no reward and are left out: " + found.failure);
  }
  return eval_metrics(eval_figures(found.results, config_.eval.samples), held_out.set);
}

Metrics HeldOutPrompts::evaluate(const engine::Decoder& decoder) const {
  Metrics metrics;
  for (const Set& held_out : sets_) {
    for (auto& metric : evaluate(decoder, held_out)) {
      metrics.push_back(std::move(metric));
    }
  }
  return metrics;
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

Metrics Evaluation::metrics() const {
  Metrics found;
  run_.on_main_rank_with_weights(true, [&] {
    if (engine::is_sharded(run_.decoder())) {
      found = prompts_->evaluate(*engine::whole_copy(run_.decoder()));
    } else {
      found = prompts_->evaluate(run_.decoder());
    }
  });
  return found;
}

}  // namespace ringside::rl
