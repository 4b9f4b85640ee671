// What the trainer's owner demands of rollouts beyond the rules of validate().
#pragma once

#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// Asked about each rollout before it is journalled and acknowledged, and about each replayed one at
// a start. What it refuses is answered REJECTED with the reason and is sampled again.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  // Whether a rollout that passed validate() may be trained on. Must not throw.
  // Thread safety: called under the endpoint's mutex, one call at a time.
  virtual Status admit(const Rollout& rollout) = 0;
};

}  // namespace ringside::bridge
