// Alarms for rollouts whose log-probs are not those that the trainer computes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rl/config/enums.h"
#include "rl/report/metrics.h"

namespace ringside::rl {

// Largest values of current samples that a correct run has.
struct MismatchLimits {
  double mult_prob_error;  // token_mult_prob_error: mean of exp(|difference of log-probs|)
  double k3_kl;            // rollout_corr/k3_kl
};

// By the dtype that the trainer computes in, for an engine that computes in the same. Two correct
// programs differ by rounding: in float32 and float64 by less than 1e-3 a token; in bfloat16 and
// float16 by 0.04 a token, when their kernels are not the same (measured: transformers with a cache
// beside transformers without, k3_kl 1.9e-3; single steps of the runs of recipes/smollm2, 8e-3).
MismatchLimits mismatch_limits(DType dtype);

class MismatchAlarms {
 public:
  // Steps after which a warning that still holds is repeated.
  static constexpr int64_t kRepeatSteps = 100;

  // dtype: that the trainer computes in, model.dtype.
  explicit MismatchAlarms(DType dtype) : dtype_(dtype) {}

  // Adds alarm/mult_prob_error and alarm/mismatch_kl: 1 above the limit or NaN, else 0. Returns a
  // sentence for an alarm at its first step, then when its value is twice that of the last
  // sentence, and after kRepeatSteps steps. Adds nothing where the metrics are missing or a sample
  // is of older weights (staleness/max above 0), because such samples differ anyway.
  std::vector<std::string> add(Metrics& metrics);

 private:
  struct Said {
    int64_t step = 0;  // of the last sentence, counted by add(); 0: none yet
    double value = 0.0;
  };

  DType dtype_;
  int64_t steps_ = 0;
  std::array<Said, 2> said_;
};

}  // namespace ringside::rl
