// Verdict on a rollout that arrives: whether it is trained on, or counted in an evaluation.
#pragma once

namespace ringside::bridge {

enum class Verdict {
  kNew,        // accept it
  kDuplicate,  // this rollout, sample or group was delivered already, or its step is over
  kRetry,      // aborted or failed with attempts left: grant this sample again
};

}  // namespace ringside::bridge
