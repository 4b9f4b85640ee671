// The decoder's operators as they are implemented for CUDA, on tensors of the host.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "engine/ops/gated_activation.h"
#include "engine/ops/qk_norm_rope.h"
#include "engine/ops/rms_norm.h"
#include "engine/ops/token_scores.h"

namespace ringside::test {

// The implementation for CUDA of an operator, given its name and its function.
template <class Result, class... Args>
auto on_cuda(const char* name, Result (*)(Args...)) {
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(Args...)>();
  return [handle](Args... args) -> Result {
    return handle.redispatch(c10::DispatchKeySet(c10::DispatchKey::CUDA), args...);
  };
}

}  // namespace ringside::test

#define RINGSIDE_ON_CUDA(operator) \
  ::ringside::test::on_cuda("ringside::" #operator, ::ringside::engine::operators::operator)
