// Evaluation on sets of held-out prompts during training: mean reward, pass@k, lengths.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "rl/rollouts/rollout_source.h"
#include "rl/trainer/run_ranks.h"

namespace ringside::rl {

class Evaluator;

class Evaluation {
 public:
  // With config.eval.every above 0, rank 0 reads the prompts and the tokenizer. source: rank 0's,
  // whose workers sample with eval.by workers. stop_signal: the signal that asked this process to
  // stop, or 0; it ends the wait for workers. All references must outlive this. Not collective.
  // Throws: std::runtime_error on unusable prompts or tokenizer, and for eval.by workers with a
  // source that has none.
  Evaluation(const Config& config, const RunRanks& ranks,
             std::vector<const engine::Decoder*> policy, RolloutSource* source,
             std::function<int()> stop_signal);
  ~Evaluation();

  // Whether an evaluation is due after `step` steps; step 0: before training. The same on every
  // rank.
  bool is_due(int64_t step) const;

  // eval_metrics() of each of eval_sets(): eval.samples completions per prompt at eval.temperature.
  // Only the first eval.max_prompts prompts of a set are used (0 = all). The metrics are on rank 0;
  // the other ranks wait and return none. Completions whose reward is unavailable are left out,
  // with a warning; a set of which none has a score has no metrics. With eval.by workers the
  // weights must have been published; without an answer for eval.timeout_s there are no metrics,
  // with a warning. Collective over: the world. Blocks: until all completions are sampled and
  // scored, which may take longer than parallel.collective_timeout_s. Throws: on rank 0
  // std::runtime_error when the source has failed; on the others RankFailed.
  Metrics metrics() const;

 private:
  const Config& config_;
  const RunRanks& ranks_;
  std::vector<const engine::Decoder*> policy_;
  std::unique_ptr<Evaluator> evaluator_;  // only on rank 0
};

}  // namespace ringside::rl
