// What must hold of the fields by which a recipe's rollouts are learned from: kept sets, greedy
// samples, the words of records, spans of versions. Judged against what the workers' models made,
// and against tables of its own. A breach throws Breach.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "rl/data/greedy_rollouts.h"
#include "rl/data/held_out_prompts.h"
#include "rl/data/training_batch.h"
#include "rollout_bridge/protocol/schema.h"
#include "tests/simulator/judge.h"

namespace ringside::simulator {

// The last token of a completion says who made it: the adapter, and whether greedily.
inline constexpr int64_t kFirstVoice = 1'500'000'000;

// What a recipe says, apart from the product's configuration.
struct RecipeFacts {
  // Its words, by their places; 0 where records do not choose.
  struct Record {
    int64_t adapter = 0;
    int64_t teacher = 0;
  };
  std::vector<Record> records = {};  // record i is the prompt with the id "p<i>"
  int64_t adapters = 1;
  int64_t teachers = 1;
  int64_t samples = 1;        // of a group
  bool has_greedy = false;    // the last of them
  bool has_kept = false;      // sampled tokens bring kept sets
  bool has_sessions = false;  // their completions are not of the recipe's model
  rl::StatedSampling sampling = {};
  rl::StatedSampling held_out = {};  // of evaluations
};

class RecipeJudge {
 public:
  explicit RecipeJudge(RecipeFacts facts) : facts_(std::move(facts)) {}

  // A worker's model, or the gateway, made a rollout. from: what its tokens were sampled from.
  void made(const bridge::Rollout& rollout, std::vector<SampledPart> from);
  // A worker sends the rollout under the id of another.
  void renamed(const bridge::Rollout& rollout, const std::string& id);
  // What its tokens were really sampled from.
  std::vector<SampledPart> sampled_for(const bridge::Rollout& rollout);
  // The newest version of those made under this id.
  int64_t newest_version(const std::string& id) const;
  // The settings that a sample of training is drawn with.
  rl::StatedSampling sampling_of(int32_t sample_index) const;
  // Those of evaluations.
  rl::StatedSampling held_out_sampling() const { return facts_.held_out; }
  // A step is trained on these rollouts, of records of these kinds.
  void trained(std::span<const bridge::Rollout> rollouts, std::span<const int64_t> kinds);
  // The part of a step that one adapter learns from, and the batch that the product makes of it.
  void batched(const rl::TrainedAndGreedy& part, int64_t adapter, const rl::StepBatch& batch);

  int64_t checks() const { return checks_; }
  int64_t kept_tokens() const { return kept_tokens_; }  // trained on with their sets
  int64_t greedy() const { return greedy_; }            // completions that were baselines
  int64_t chosen() const { return chosen_; }    // rollouts of records with words, trained on
  int64_t spanned() const { return spanned_; }  // rollouts of several versions, trained on

 private:
  struct Made {
    bridge::Rollout rollout;
    std::vector<SampledPart> from;
  };

  void check(bool holds, const std::string& what);
  const RecipeFacts::Record& record_of(const bridge::Rollout& rollout);
  int64_t kind_of(const RecipeFacts::Record& record) const;
  const Made& made_as(const bridge::Rollout& rollout);
  void check_sampling(const bridge::Rollout& rollout);
  void check_columns(const bridge::Rollout& rollout, int64_t sample, const rl::StepBatch& batch);

  RecipeFacts facts_;
  std::multimap<std::string, Made> made_;  // by rollout id
  int64_t checks_ = 0;
  int64_t kept_tokens_ = 0, greedy_ = 0, chosen_ = 0, spanned_ = 0;
};

}  // namespace ringside::simulator
