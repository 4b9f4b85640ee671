#include "rl/trainer/evaluation.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/models/weight_export.h"
#include "rl/config/eval_sets.h"
#include "rl/data/held_out_prompts.h"
#include "rl/data/rollout_rewards.h"
#include "rl/report/log.h"
#include "rl/rewards/weighted_rewards.h"
#include "rl/sampling/prompt_evaluation.h"

namespace ringside::rl {
namespace {

void warn_of_unscored(const PromptEvaluation& found, const HeldOutSet& held_out, int64_t samples) {
  if (found.unscored > 0) {
    log::warn("evaluation on " + held_out.set.key + ": " + std::to_string(found.unscored) + " of " +
              std::to_string(static_cast<int64_t>(held_out.prompts.size()) * samples) +
              " completions have no reward and are left out: " + found.failure);
  }
}

void append_figures(Metrics& metrics, const PromptEvaluation& found, const HeldOutSet& held_out,
                    int64_t samples) {
  warn_of_unscored(found, held_out, samples);
  for (auto& metric : eval_metrics(eval_figures(found.results, samples), held_out.set)) {
    metrics.push_back(std::move(metric));
  }
}

}  // namespace

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // policy: its weights as they act, whole on this rank.
  virtual Metrics evaluate(const engine::Decoder& policy) = 0;
};

namespace {

// Samples with the generator of this rank.
class EmbeddedEvaluator final : public Evaluator {
 public:
  EmbeddedEvaluator(const Config& config, const engine::ModelConfig& model)
      : config_(config), sampler_(config, model), prompts_(config, sampler_.tokenizer()) {
    for (const HeldOutSet& held_out : prompts_.sets()) {
      sampler_.take_images(held_out.set.files, held_out.prompts);
    }
  }

  Metrics evaluate(const engine::Decoder& policy) override {
    Metrics metrics;
    for (const HeldOutSet& held_out : prompts_.sets()) {
      append_figures(metrics, evaluate_prompts(sampler_, policy, held_out.prompts, config_),
                     held_out, config_.eval.samples);
    }
    return metrics;
  }

 private:
  Config config_;
  PromptSampler sampler_;
  HeldOutPrompts prompts_;
};

// The total of a sample, as of a rollout that is trained on; nullopt if it failed.
std::optional<double> total_of(const bridge::HeldOutSample& sample,
                               std::span<const WeightedReward> recipe) {
  bridge::Rollout rewarded;
  rewarded.rewards = sample.rewards;
  rewarded.turn_rewards = sample.turn_rewards;
  return is_scored(rewarded) ? std::optional(total_reward(rewarded, recipe)) : std::nullopt;
}

// Lets the workers of the source sample.
class WorkersEvaluator final : public Evaluator {
 public:
  WorkersEvaluator(const Config& config, RolloutSource* source, std::function<int()> stop_signal)
      : eval_(config.eval),
        stop_signal_(std::move(stop_signal)),
        source_(source),
        prompts_(config, engine::Tokenizer::load(std::filesystem::path(config.model.path) /
                                                 "tokenizer.json")),
        recipe_(parse_rewards(config.rollout.reward)) {
    if (source == nullptr || !source->has_evaluation()) {
      throw std::runtime_error(
          "eval.by is workers, but this run has none: its rollouts come from a file or from "
          "prime-rl; expected eval.by embedded");
    }
  }

  Metrics evaluate(const engine::Decoder&) override {
    const HeldOutAnswers answers = source_->evaluate(
        {prompts_.size(), eval_.samples,
         std::chrono::milliseconds(static_cast<int64_t>(eval_.timeout_s * 1000)), stop_signal_});
    if (answers.samples.empty()) {
      log::warn("an evaluation by the workers is left out: " + answers.missing +
                (stop_signal_() == 0 ? "; no completion came for eval.timeout_s" : ""));
      return {};
    }
    std::vector<PromptEvaluation> found = by_set(answers.samples);
    Metrics metrics;
    for (std::size_t set = 0; set < found.size(); ++set) {
      append_figures(metrics, found[set], prompts_.sets()[set], eval_.samples);
    }
    return metrics;
  }

 private:
  std::vector<PromptEvaluation> by_set(const std::vector<bridge::HeldOutSample>& samples) const {
    std::vector<PromptEvaluation> found;
    for (const HeldOutSet& held_out : prompts_.sets()) {
      found.emplace_back().results.resize(held_out.prompts.size());
    }
    for (const bridge::HeldOutSample& sample : samples) {
      const HeldOutPrompts::Place place = prompts_.place_of(sample.prompt);
      PromptResult& result = found[place.set].results[place.index];
      const std::optional<double> total = total_of(sample, recipe_);
      if (!total) {
        ++result.unscored;
        ++found[place.set].unscored;
        found[place.set].failure = "the workers' logs say why";
        continue;
      }
      result.rewards.push_back(*total);
      result.lengths.push_back(sample.tokens);
      result.truncated += sample.finish_reason == bridge::FinishReason::kLength ? 1 : 0;
    }
    return found;
  }

  EvalConfig eval_;
  std::function<int()> stop_signal_;
  RolloutSource* source_;
  HeldOutPrompts prompts_;
  std::vector<WeightedReward> recipe_;
};

}  // namespace

Evaluation::Evaluation(const Config& config, const RunRanks& ranks,
                       std::vector<const engine::Decoder*> policy, RolloutSource* source,
                       std::function<int()> stop_signal)
    : config_(config), ranks_(ranks), policy_(std::move(policy)) {
  if (!ranks.is_main() || config.eval.every == 0) {
    return;
  }
  if (config.eval.by == EvalBy::kWorkers) {
    evaluator_ = std::make_unique<WorkersEvaluator>(config, source, std::move(stop_signal));
  } else {
    evaluator_ = std::make_unique<EmbeddedEvaluator>(config, policy_.front()->config());
  }
}

Evaluation::~Evaluation() = default;

bool Evaluation::is_due(int64_t step) const { return evaluation_is_due(config_.eval, step); }

Metrics Evaluation::metrics() const {
  const engine::WeightView weights(policy_);
  std::unique_ptr<engine::Decoder> copy;  // of a policy that this rank holds a part of
  if (config_.eval.by == EvalBy::kEmbedded && weights.is_sharded()) {
    const engine::WeightSink sink = [&](engine::UnitExport& units) { copy = whole_copy(units); };
    ranks_.export_weights(weights, evaluator_ ? sink : engine::WeightSink());
  }
  Metrics found;
  ranks_.on_main([&] { found = evaluator_->evaluate(copy ? *copy : *policy_.front()); });
  return found;
}

}  // namespace ringside::rl
