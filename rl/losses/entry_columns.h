// Loss entries of one micro-batch as tensors: the part of StepColumns that the losses read.
// Shapes: n = loss entries of this rank. All tensors but sample_n are fp32, or fp64 if the model
// computes in fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace ringside::rl {

struct EntryColumns {
  at::Tensor sample_n;  // int64, the entry's sequence in its mini-batch
  at::Tensor weight_n;
  at::Tensor rollout_logprob_n;
  at::Tensor old_logprob_n;
  at::Tensor reference_logprob_n;
  at::Tensor advantage_n;
  at::Tensor correction_n;
  at::Tensor chosen_n;  // undefined: the loss chooses no tokens

  // The fields in their order, as a model runner takes them to the device, and back.
  std::vector<at::Tensor> list() const {
    return {sample_n,    weight_n,     rollout_logprob_n, old_logprob_n, reference_logprob_n,
            advantage_n, correction_n, chosen_n};
  }
  // The reverse of list().
  // Throws: c10::Error unless there are 8 columns.
  static EntryColumns from(std::span<const at::Tensor> list) {
    TORCH_CHECK(list.size() == 8, "entry columns: 8 columns make one, got ", list.size());
    return {list[0], list[1], list[2], list[3], list[4], list[5], list[6], list[7]};
  }
};

}  // namespace ringside::rl
