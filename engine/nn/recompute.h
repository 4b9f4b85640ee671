// Activation checkpointing: a segment runs without autograd in the forward, and again with autograd
// in the backward.
//
// Source: Chen et al. 2016.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace ringside::engine {

// Returns segment(input). Keeps only `input` for the backward, where the segment runs again. The
// segment reads the `leaves` themselves (flat buffers of parameters) and must give the same result
// twice. Objects that it captures by reference must outlive the backward. Gradients flow to `input`
// and to the leaves that require one.
at::Tensor recompute_in_backward(const at::Tensor& input, const std::vector<at::Tensor>& leaves,
                                 std::function<at::Tensor(const at::Tensor&)> segment);

}  // namespace ringside::engine
