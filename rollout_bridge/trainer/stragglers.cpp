#include "rollout_bridge/trainer/stragglers.h"

namespace ringside::bridge {
namespace {

constexpr const char* kPrefix = "straggler:";

}  // namespace

Rollout make_stand_in(const Rollout& sibling, int32_t sample_index, int64_t trainer_term) {
  Rollout r;
  r.rollout_id = kPrefix + std::to_string(trainer_term) + ":" + std::to_string(sibling.group_id) +
                 ":" + std::to_string(sample_index);
  r.group_id = sibling.group_id;
  r.group_size = sibling.group_size;
  r.sample_index = sample_index;
  r.prompt_id = sibling.prompt_id;
  r.prompt_ids = sibling.prompt_ids;
  r.temperature = sibling.temperature;
  r.top_p = sibling.top_p;
  r.top_k = sibling.top_k;
  r.trainer_term = trainer_term;
  r.finish_reason = FinishReason::kError;
  r.failure = "it did not come in time, and its group was trained without it";
  return r;
}

bool is_stand_in_id(const std::string& rollout_id) { return rollout_id.starts_with(kPrefix); }

}  // namespace ringside::bridge
