// Non-tensor state of an autograd function, kept in its context for the backward.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace ringside::sp {

// A value as an IValue can hold it.
template <class T>
struct Held final : torch::CustomClassHolder {
  // Takes the value, which lives as long as the autograd node.
  explicit Held(T v) : value(std::move(v)) {}
  T value;
};

// Keeps value until the graph is freed. Call it once per context.
template <class T>
void hold(torch::autograd::AutogradContext* ctx, T value) {
  ctx->saved_data["held"] =
      c10::IValue::make_capsule(c10::make_intrusive<Held<T>>(std::move(value)));
}

// A copy of the value that hold() kept, so it outlives a context that is freed meanwhile. T must be
// hold()'s.
template <class T>
T held(torch::autograd::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Held<T>>(ctx->saved_data["held"].toCapsule())->value;
}

}  // namespace ringside::sp
