// Boxed kernel of every operator without one of its own: runs the CPU kernel on the device's
// memory.
//
// Refuses tensors of several devices, also where torch's own fallback copies them silently and
// where CUDA copies indices with a host sync. CPU tensors without dimensions pass, as on CUDA.
// Checks the order of the accesses, counts the operator, and counts a host sync for operators whose
// result's shape depends on values.
// Throws: c10::Error with the operator and both devices; for an operator without a CPU kernel.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace ringside::standin {

// The arguments on `stack` are replaced by the results.
void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace ringside::standin
