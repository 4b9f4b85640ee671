// Learning rate schedule: a pure function of the step, so resuming needs no state.
#pragma once

#include <cstdint>

namespace ringside::engine {

// How the learning rate falls after warm-up.
enum class LrDecay { kConstant, kLinear, kCosine };

// From total_steps on the rate stays at the floor; transformers' cosine would rise again. With
// min_lr_ratio > 0 the linear decay ends at the same floor as the cosine.
// Source: transformers' get_{constant,linear,cosine}_schedule_with_warmup and, with min_lr_ratio >
// 0, get_cosine_with_min_lr_schedule_with_warmup.
struct LrSchedule {
  LrDecay decay = LrDecay::kConstant;
  double peak = 0;           // learning rate after warm-up
  int64_t warmup_steps = 0;  // linear from 0
  int64_t total_steps = 0;   // end of the decay; unused by kConstant
  double min_lr_ratio = 0;   // the floor as a fraction of `peak`; unused by kConstant

  // Learning rate of optimizer step `step`, counted from 0. Step 0 of a warm-up has rate 0.
  // Throws: std::invalid_argument on a negative step, peak or warm-up, a ratio outside [0, 1], and
  // a decay without positive total_steps.
  double at_step(int64_t step) const;
};

}  // namespace ringside::engine
