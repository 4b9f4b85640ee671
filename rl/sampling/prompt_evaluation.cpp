#include "rl/sampling/prompt_evaluation.h"

#include <algorithm>
#include <stdexcept>

#include "rl/data/held_out_prompts.h"

namespace ringside::rl {
namespace {

// Completions that are sampled, and then scored, by one call. At the end of a call fewer and fewer
// are computed together, so that it has many times the rows of the sampler.
constexpr int64_t kCompletionBatch = 8 * kMostRows;

void add_completion(PromptEvaluation& evaluation, std::size_t index,
                    const ScoredCompletion& scored) {
  PromptResult& result = evaluation.results[index];
  if (!scored.scores.failure.empty()) {
    ++result.unscored;
    ++evaluation.unscored;
    evaluation.failure = scored.scores.failure;
    return;
  }
  result.rewards.push_back(scored.scores.total);
  result.lengths.push_back(static_cast<int64_t>(scored.completion.ids.size()));
  result.truncated += scored.completion.finish == engine::StopReason::kLength ? 1 : 0;
}

}  // namespace

PromptEvaluation evaluate_prompts(const PromptSampler& sampler, const engine::Decoder& decoder,
                                  const std::vector<Prompt>& prompts, const Config& config,
                                  const OnCompletion& on_completion) {
  if (prompts.empty()) {
    throw std::invalid_argument("evaluation: there are no prompts");
  }
  PromptEvaluation evaluation;
  evaluation.results.resize(prompts.size());
  const int64_t samples = config.eval.samples;
  const auto all = static_cast<int64_t>(prompts.size()) * samples;
  for (int64_t begin = 0; begin < all; begin += kCompletionBatch) {
    const int64_t end = std::min(all, begin + kCompletionBatch);
    std::vector<Prompt> batch;
    std::vector<uint64_t> seeds;
    for (int64_t i = begin; i < end; ++i) {
      batch.push_back(prompts[i / samples]);
      seeds.push_back(held_out_seed(config, i / samples, i % samples));
    }
    const auto scored =
        sampler.sample(decoder, batch, seeds, {.temperature = config.eval.temperature});
    for (int64_t i = begin; i < end; ++i) {
      add_completion(evaluation, i / samples, scored[i - begin]);
      if (on_completion) {
        on_completion(i / samples, i % samples, scored[i - begin]);
      }
    }
  }
  return evaluation;
}

}  // namespace ringside::rl
