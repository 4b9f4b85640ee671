#include "rollout_bridge/trainer/held_out_samples.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>

namespace ringside::bridge {
namespace {

constexpr int64_t kBeforeAll = INT64_MIN;  // a priority

Error not_taken(Reason reason, const Rollout& rollout, const std::string& what) {
  return {reason, "rollout '" + rollout.rollout_id + "' of a held-out prompt: " + what};
}

}  // namespace

HeldOutSamples::HeldOutSamples(WorkDivision& work, int32_t max_attempts, int64_t trainer_term)
    : work_(work), max_attempts_(max_attempts), trainer_term_(trainer_term) {}

void HeldOutSamples::open(int64_t prompts, int32_t samples, int64_t version) {
  if (prompts < 1 || samples < 1 || version < 0) {
    throw std::invalid_argument("evaluation of " + std::to_string(prompts) + " prompts with " +
                                std::to_string(samples) + " samples each under version " +
                                std::to_string(version) + ": expected at least 1, 1 and 0");
  }
  close();
  first_group_ = next_group_;
  next_group_ += prompts;
  group_size_ = samples;
  version_ = version;
  missing_ = prompts * samples;
  samples_.resize(static_cast<std::size_t>(missing_));
  std::vector<int32_t> all(static_cast<std::size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t prompt = 0; prompt < prompts; ++prompt) {
    for (int32_t i = 0; i < samples; ++i) {
      samples_[static_cast<std::size_t>(prompt * samples + i)].result.prompt = prompt;
    }
    work_.add({first_group_ + prompt, samples, version, 0, all, prompt}, kBeforeAll);
  }
}

void HeldOutSamples::close() {
  for (int64_t group = first_group_; group < next_group_; ++group) {
    work_.remove(group);
  }
  samples_.clear();
  missing_ = 0;
}

Result<Verdict> HeldOutSamples::judge(const Rollout& rollout, const std::string& worker) const {
  const int64_t group = rollout.group_id;
  if (rollout.trainer_term != trainer_term_) {
    return not_taken(Reason::kStale, rollout, "it is of an earlier start of the trainer");
  }
  if (group >= next_group_) {
    return not_taken(Reason::kUnknownGroup, rollout,
                     "group " + std::to_string(group) + " is granted to nobody");
  }
  if (!is_open() || group < first_group_) {
    return Verdict::kDuplicate;
  }
  if (rollout.group_size != group_size_) {
    return not_taken(Reason::kInvalidField, rollout,
                     "group_size " + std::to_string(rollout.group_size) + ", its group has " +
                         std::to_string(group_size_));
  }
  if (samples_[index_of(rollout)].delivered) {
    return Verdict::kDuplicate;
  }
  if (!work_.was_assigned_to(group, rollout.sample_index, worker)) {
    return not_taken(Reason::kNotGranted, rollout,
                     "sample " + std::to_string(rollout.sample_index) + " of group " +
                         std::to_string(group) + " was never granted to worker '" + worker + "'");
  }
  for (const VersionSpan& span : rollout.versions) {
    if (span.version == version_) {
      continue;
    }
    return not_taken(Reason::kStale, rollout,
                     "version " + std::to_string(span.version) + ", the evaluation is of version " +
                         std::to_string(version_));
  }
  const bool is_last = work_.is_held_by(group, rollout.sample_index, worker) &&
                       work_.attempt(group, rollout.sample_index) + 1 >= max_attempts_;
  return has_failed(rollout) && !is_last ? Verdict::kRetry : Verdict::kNew;
}

void HeldOutSamples::deliver(const Rollout& rollout) {
  Sample& sample = samples_[index_of(rollout)];
  sample.delivered = true;
  sample.result.finish_reason = rollout.finish_reason;
  const std::vector<uint8_t>& mask = rollout.loss_mask;
  sample.result.tokens = mask.empty() ? static_cast<int64_t>(rollout.completion_ids.size())
                                      : std::count(mask.begin(), mask.end(), 1);
  if (!has_failed(rollout)) {
    sample.result.rewards = rollout.rewards;
    sample.result.turn_rewards = rollout.turn_rewards;
  }
  --missing_;
  work_.finish(rollout.group_id, rollout.sample_index);
}

void HeldOutSamples::retry(const Rollout& rollout, const std::string& worker) {
  if (work_.is_held_by(rollout.group_id, rollout.sample_index, worker)) {
    work_.retry(rollout.group_id, rollout.sample_index);
  }
}

std::vector<HeldOutSample> HeldOutSamples::take() {
  if (!is_open() || missing_ > 0) {
    throw std::logic_error("an evaluation is taken with " + std::to_string(missing_) + " of " +
                           std::to_string(size()) + " samples missing");
  }
  std::vector<HeldOutSample> results;
  results.reserve(samples_.size());
  for (Sample& sample : samples_) {
    results.push_back(std::move(sample.result));
  }
  close();
  return results;
}

std::size_t HeldOutSamples::index_of(const Rollout& rollout) const {
  return static_cast<std::size_t>(prompt_of(rollout.group_id) * group_size_ + rollout.sample_index);
}

}  // namespace ringside::bridge
