// Stand-ins: failed rollouts that the trainer itself writes in place of samples that did not come
// in time, so that their step is trained without them. They stand in the journal like any rollout,
// so a restart trains on the same samples.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// A failed rollout without a token. sibling: a rollout of the same group, whose prompt and sampling
// settings it takes. Its id is unlike that of any other sample and of any other trainer start.
Rollout make_stand_in(const Rollout& sibling, int32_t sample_index, int64_t trainer_term);

// Whether the id is of the form that make_stand_in() gives; no worker may use it.
bool is_stand_in_id(const std::string& rollout_id);

}  // namespace ringside::bridge
