// Activation checkpointing: a segment runs without autograd in the forward, and again with autograd
// in the backward.
//
// Source: Chen et al. 2016.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "engine/device/activation_offload.h"
#include "sp/mesh/kept_results.h"

namespace ringside::engine {

// What is kept beside a segment's input, and where it waits for the backward.
struct RecomputeOptions {
  std::shared_ptr<sp::KeptResults> results;    // that the segment keeps; null: none
  std::shared_ptr<ActivationOffload> offload;  // holds input and results; null: they stay
};

// Returns segment(input). Keeps only `input` and the kept results for the backward, where the
// segment runs again. Only the gradient path of that second run is used; its value is not read. The
// segment reads the `leaves` itself (flat buffers of parameters) and must give the same result
// twice. Objects that it captures by reference must outlive the backward. Gradients flow to `input`
// and to the leaves that require one. With an offload the input must not be changed before the
// backward.
// Throws: c10::Error in a second backward through the segment.
at::Tensor recompute_in_backward(const at::Tensor& input, const std::vector<at::Tensor>& leaves,
                                 std::function<at::Tensor(const at::Tensor&)> segment,
                                 RecomputeOptions options = {});

}  // namespace ringside::engine
