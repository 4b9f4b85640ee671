// One micro-batch's loss entries as tensors: what the losses read of StepColumns.
// Shapes: n = loss entries of this rank. All but sample_n are fp32, or fp64 when the model computes
// in it.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::rl {

struct EntryColumns {
  at::Tensor sample_n;  // int64, the entry's sequence in its mini-batch
  at::Tensor weight_n;
  at::Tensor rollout_logprob_n;
  at::Tensor old_logprob_n;
  at::Tensor reference_logprob_n;
  at::Tensor advantage_n;
  at::Tensor correction_n;
};

}  // namespace ringside::rl
