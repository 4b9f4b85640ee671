// Loss entries of one micro-batch as tensors: the part of StepColumns that the losses read.
// Shapes: n = loss entries of this rank. All tensors but sample_n are fp32, or fp64 if the model
// computes in fp64.
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
