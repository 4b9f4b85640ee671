// Admission policy of the trainer: rules for rollouts beyond those of validate().
#pragma once

#include <cstdint>

#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// Called for each rollout before it is journalled and acknowledged, and for each rollout replayed
// from the journal at a start. A refused rollout is answered REJECTED with the reason. Its sample
// is granted again.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  // True (ok) when a rollout that passed validate() may be trained on.
  // Throws: nothing; an implementation must not throw.
  // Thread safety: called under the endpoint's mutex, one call at a time.
  virtual Status admit(const Rollout& rollout) = 0;
  // The same for a rollout of held-out prompt number `held_out`, which counts for an evaluation. It
  // is neither journalled nor trained on.
  virtual Status admit_held_out(const Rollout& rollout, int64_t held_out) = 0;
};

}  // namespace ringside::bridge
