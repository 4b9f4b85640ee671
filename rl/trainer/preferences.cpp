#include "rl/trainer/preferences.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/eval_sets.h"
#include "rl/config/task.h"
#include "rl/data/document_batches.h"
#include "rl/report/stage_times.h"
#include "rl/trainer/preference_training.h"
#include "rl/trainer/rank_agreement.h"
#include "rl/trainer/step_metrics.h"
#include "sp/layout/range.h"

namespace ringside::rl {
namespace {

// Pairs of one held-out set.
class HeldOutPairs {
 public:
  HeldOutPairs(const Config& config, const RunRanks& ranks, const engine::Decoder& policy,
               const engine::Tokenizer& tokenizer, EvalSet set)
      : config_(config),
        ranks_(ranks),
        set_(std::move(set)),
        file_(set_.files, config, tokenizer, policy.config().eos_token_ids),
        size_(config.eval.max_prompts > 0 ? std::min(config.eval.max_prompts, file_.size())
                                          : file_.size()) {}

  // Their metrics, named as the set's; the same on every rank.
  // Collective over: the world.
  // Throws: std::runtime_error when no pair is left.
  Metrics metrics(const PreferenceTraining& training) {
    PairFigures figures;
    for (int64_t begin = 0; begin < size_; begin += config_.train.batch_size) {
      const int64_t end = std::min(size_, begin + config_.train.batch_size);
      PairDocuments pairs;
      ranks_.on_every([&] { pairs = read(begin, end); });
      if (!pairs.documents.empty()) {
        figures += training.evaluate(pairs);
      }
    }
    if (figures.pairs == 0.0) {
      throw std::runtime_error(set_.key + ": no pair of " + set_.files + " is left to evaluate");
    }
    Metrics metrics = pair_metrics(figures, config_.algorithm);
    for (auto& [name, value] : metrics) {
      name = set_.metric(name);
    }
    return metrics;
  }

 private:
  PairDocuments read(int64_t begin, int64_t end) {
    std::vector<TokenizedPair> pairs;
    for (int64_t i = begin; i < end; ++i) {
      if (auto read = file_.read(i); read.example) {
        pairs.push_back(*std::move(read.example));
      }
    }
    return make_pair_documents(pairs, config_.algorithm.task);
  }

  const Config& config_;
  const RunRanks& ranks_;
  EvalSet set_;
  PreferenceFile file_;
  int64_t size_;
};

// What a rank reads and loads. All ranks do so at the same time, however long it takes.
struct PreferenceParts {
  std::optional<PreferenceTraining> training;
  std::optional<engine::Tokenizer> tokenizer;
  std::optional<PreferenceBatches> batches;
  // Of eval_sets(), if eval.every is above 0.
  std::vector<std::unique_ptr<HeldOutPairs>> held_out;

  // Collective over: the world.
  explicit PreferenceParts(TrainingRun& run) {
    const Config& config = run.config();
    run.ranks().on_every([&] {
      const engine::Decoder& policy = run.policy().decoder();
      training.emplace(config, run.ranks(), run.policy());
      if (ReferencePolicy* reference = training->reference(); reference && reference->moves()) {
        run.add_checkpointed_model("reference", reference->runner());
      }
      tokenizer.emplace(
          engine::Tokenizer::load(std::filesystem::path(config.model.path) / "tokenizer.json"));
      auto file = std::make_unique<PreferenceFile>(config.data.preferences, config, *tokenizer,
                                                   policy.config().eos_token_ids);
      const auto options = batch_options<PreferenceFile>(config, file->size(), run.state().step);
      batches.emplace(std::move(file), options);
      for (EvalSet& set : config.eval.every > 0 ? eval_sets(config) : std::vector<EvalSet>()) {
        held_out.push_back(std::make_unique<HeldOutPairs>(config, run.ranks(), policy, *tokenizer,
                                                          std::move(set)));
      }
    });
  }

  RankFacts loaded_facts() {
    ReferencePolicy* reference = training->reference();
    return reference ? RankFacts{weights_fact("reference", reference->runner())} : RankFacts{};
  }

  // The metrics of all held-out sets; the same on every rank. Collective over: the world.
  Metrics evaluate(StageTimes& times) {
    Metrics all;
    for (const auto& pairs : held_out) {
      for (auto& metric : times.time("evaluate", [&] { return pairs->metrics(*training); })) {
        all.push_back(std::move(metric));
      }
    }
    return all;
  }
};

// Collective over: the world.
void evaluate_before_training(TrainingRun& run, PreferenceParts& parts, StageTimes& times) {
  if (run.state().step > 0 || parts.held_out.empty() || !run.config().eval.before_training) {
    return;
  }
  const Metrics found = parts.evaluate(times);
  if (run.ranks().is_main()) {
    run.report().write_first_evaluation(found);
  }
}

// Results of a step's optimizer steps.
struct StepOfPairs {
  std::vector<UpdateResult> updates;
  PairFigures figures;
  int64_t tokens = 0;
};

// The optimizer steps of a step. Ends the run when it has diverged. Collective over: the world.
StepOfPairs update(TrainingRun& run, PreferenceTraining& training,
                   const std::vector<TokenizedPair>& pairs) {
  const Config& config = run.config();
  StepOfPairs result;
  for (int64_t b = 0; b < config.train.num_mini_batches; ++b) {
    const sp::Range part =
        sp::even_part(static_cast<int64_t>(pairs.size()), config.train.num_mini_batches, b);
    if (part.begin == part.end) {
      continue;  // fewer pairs than mini-batches are left
    }
    const PairDocuments documents = make_pair_documents(
        std::span(pairs).subspan(part.begin, part.end - part.begin), config.algorithm.task);
    try {
      PairUpdate update = training.update(documents);
      result.updates.push_back(std::move(update.update));
      result.figures += update.figures;
    } catch (const engine::Diverged& error) {
      run.diverged(error);
    }
    result.tokens += documents.tokens;
  }
  return result;
}

// Of update_metrics() and pair_metrics() what the task has.
Metrics step_metrics(const PreferenceBatches::Step& step, const StepOfPairs& trained,
                     const AlgorithmConfig& algorithm) {
  Metrics metrics = trained.updates.empty() ? Metrics{} : update_metrics(trained.updates);
  const bool reward_model = algorithm.task == Task::kRewardModel;
  std::erase_if(metrics, [&](const auto& metric) {
    return metric.first == "kl" || metric.first == "policy_loss" ||
           (reward_model && metric.first == "entropy");
  });
  for (auto& metric :
       trained.updates.empty() ? Metrics{} : pair_metrics(trained.figures, algorithm)) {
    if (metric.first != "loss") {  // of the optimizer steps, as of every task
      metrics.push_back(std::move(metric));
    }
  }
  metrics.emplace_back("preferences/pairs", static_cast<double>(step.examples.size()));
  metrics.emplace_back("preferences/overlong", static_cast<double>(step.overlong));
  metrics.emplace_back("num_tokens", static_cast<double>(trained.tokens));
  return metrics;
}

}  // namespace

void train_preferences(TrainingRun& run) {
  StageTimes times;  // what follows take() counts in the next step
  const Config& config = run.config();
  PreferenceParts parts(run);
  check_loaded(run.ranks(), run.run_dir(), run.policy().runner(),
               [&] { return parts.loaded_facts(); });
  evaluate_before_training(run, parts, times);
  while (!run.is_over()) {
    PreferenceBatches::Step step;
    times.time("wait_data", [&] { run.ranks().on_every([&] { step = parts.batches->next(); }); });
    const StepOfPairs trained =
        times.time("train", [&] { return update(run, *parts.training, step.examples); });
    if (ReferencePolicy* reference = parts.training->reference()) {
      reference->follow(run.policy().runner(), run.state().step + 1);
    }
    Metrics metrics = step_metrics(step, trained, config.algorithm);
    if (!parts.held_out.empty() && (run.state().step + 1) % config.eval.every == 0) {
      for (auto& metric : parts.evaluate(times)) {
        metrics.push_back(std::move(metric));
      }
    }
    for (auto& time : times.take()) {
      metrics.push_back(std::move(time));
    }
    times.time("save", [&] { return run.finish_step(std::move(metrics), trained.updates); });
  }
  run.finish();
}

}  // namespace ringside::rl
