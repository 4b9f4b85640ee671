// Activation checkpointing: a segment runs without autograd in the forward, and again with autograd
// in the backward.
//
// Source: Chen et al. 2016.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace ringside::engine {

// Returns segment(input). Keeps only `input` for the backward, where the segment runs again. The
// segment reads `leaf` itself (a unit's flat buffer, which requires grad) and must give the same
// result twice. Objects that it captures by reference must outlive the backward. Gradients flow to
// `input` and `leaf`.
at::Tensor recompute_in_backward(const at::Tensor& input, const at::Tensor& leaf,
                                 std::function<at::Tensor(const at::Tensor&)> segment);

}  // namespace ringside::engine
