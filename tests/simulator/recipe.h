// The recipe of a run: a configuration, its data files, and what the product makes of them on both
// sides of the bridge: jobs of samples, admission, kinds of records, batches of steps.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/greedy_rollouts.h"
#include "rl/data/training_batch.h"
#include "rl/rollouts/granted_prompts.h"
#include "rl/worker/sample_jobs.h"
#include "rollout_bridge/trainer/admission.h"
#include "tests/simulator/clock.h"
#include "tests/simulator/recipe_judge.h"
#include "tests/support/temporary_directory.h"

namespace ringside::simulator {

struct RecipePlan {
  RecipeFacts facts;
  int64_t prompts_per_step = 1;
  int64_t held_out_prompts = 1;
  int64_t seed = 1;
};

// Draws what a run samples and learns by. samples: of a group, with a greedy one.
RecipePlan draw_recipe(Random& random, int64_t samples, bool has_sessions, bool has_stragglers);

class Recipe {
 public:
  // Writes the files of the recipe. Throws: std::invalid_argument when the product refuses it.
  explicit Recipe(const RecipePlan& plan);

  // --- workers
  rl::SampleJob job(const bridge::GrantedSample& sample) { return jobs_.of(sample); }
  // As DecoderSampler and ServerAnswers make them. with: in order, not empty.
  bridge::Rollout completed(const bridge::GrantedSample& sample, const std::string& worker,
                            std::vector<SampledPart> with, Random& random);
  bridge::Rollout failed(const bridge::GrantedSample& sample, const std::string& worker,
                         int64_t version);

  // --- the trainer
  // The rules of one start.
  std::shared_ptr<bridge::AdmissionPolicy> admission() const;
  // What the training loop makes of a step's rollouts, and what must hold of it.
  void train(std::span<const bridge::Rollout> rollouts);

  RecipeJudge& judge() { return judge_; }

 private:
  std::vector<int64_t> prompt_ids(const rl::SampleJob& job) const;

  RecipePlan plan_;
  test::TemporaryDirectory folder_;
  rl::Config config_;
  engine::Tokenizer tokenizer_;
  rl::SampleJobs jobs_;
  rl::GrantedAnswers answers_;
  RecipeJudge judge_;
};

}  // namespace ringside::simulator
