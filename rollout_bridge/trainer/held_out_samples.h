// Samples of one evaluation: completions of held-out prompts by the workers, under one version.
//
// The group with id first + i holds the samples of held-out prompt i. Ids rise over all evaluations
// of a trainer start, so a late rollout of an earlier evaluation is recognised. WorkDivision knows
// which worker makes which sample; this class stores the returned samples. Nothing here is
// journalled or trained on.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/trainer/verdict.h"
#include "rollout_bridge/trainer/work_division.h"

namespace ringside::bridge {

// Result of one sample.
struct HeldOutSample {
  int64_t prompt = -1;  // number of the held-out prompt
  // As of a rollout; both are empty if it failed at every attempt.
  std::vector<std::pair<std::string, double>> rewards = {};
  std::vector<double> turn_rewards = {};
  int64_t tokens = 0;  // sampled ones
  FinishReason finish_reason = FinishReason::kError;
};

class HeldOutSamples {
 public:
  // work: must outlive it. max_attempts: at one sample; after the last it counts as failed.
  HeldOutSamples(WorkDivision& work, int32_t max_attempts, int64_t trainer_term);

  // Starts an evaluation of the prompts 0 ... prompts - 1 with `samples` completions each, all of
  // them under `version`. Its groups are granted before all others. Ends the evaluation before.
  // Throws: std::invalid_argument for numbers below 1.
  void open(int64_t prompts, int32_t samples, int64_t version);
  // Takes back the samples that are missing. Rollouts of them that still arrive are duplicates.
  void close();

  // Decision about a validated rollout of `worker`. Errors: kStale for weights other than the
  // evaluation's; kUnknownGroup for a group that no evaluation has had; kInvalidField for another
  // group_size; kNotGranted for a sample that was granted to other workers only.
  Result<Verdict> judge(const Rollout& rollout, const std::string& worker) const;
  // Stores the result of a rollout that judge() called kNew.
  void deliver(const Rollout& rollout);
  // Counts the attempt of a rollout that judge() called kRetry and grants its sample again, if
  // `worker` holds it.
  void retry(const Rollout& rollout, const std::string& worker);

  // Number of the held-out prompt of a group of this evaluation.
  int64_t prompt_of(int64_t group_id) const { return group_id - first_group_; }
  bool is_open() const { return !samples_.empty(); }
  int64_t size() const { return static_cast<int64_t>(samples_.size()); }
  int64_t missing() const { return missing_; }
  // All samples in order of prompt and sample; ends the evaluation.
  // Throws: std::logic_error while samples are missing.
  std::vector<HeldOutSample> take();

 private:
  struct Sample {
    bool delivered = false;
    HeldOutSample result;
  };
  std::size_t index_of(const Rollout& rollout) const;

  WorkDivision& work_;
  int32_t max_attempts_;
  int64_t trainer_term_;
  int64_t first_group_ = kFirstHeldOutGroup;
  int64_t next_group_ = kFirstHeldOutGroup;  // of the next evaluation
  int32_t group_size_ = 1;
  int64_t version_ = -1;
  int64_t missing_ = 0;
  std::vector<Sample> samples_;  // by prompt, then sample; empty: no evaluation is open
};

}  // namespace ringside::bridge
