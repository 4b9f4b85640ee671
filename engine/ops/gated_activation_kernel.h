// CUDA kernels of the gated activations. kernel_types.h says what holds for all launchers.
#pragma once

#include "engine/ops/kernel_types.h"

namespace ringside::engine {

// operators::swiglu and its gradient. f: the MLP's size.
cudaError_t swiglu_cuda(const Types& types, const void* gate_up, void* out, int64_t rows, int64_t f,
                        cudaStream_t stream);
cudaError_t swiglu_backward_cuda(const Types& types, const void* dy, const void* gate_up,
                                 void* d_gate_up, int64_t rows, int64_t f, cudaStream_t stream);

// operators::geglu and its gradient.
cudaError_t geglu_cuda(const Types& types, const void* gate_up, void* out, int64_t rows, int64_t f,
                       cudaStream_t stream);
cudaError_t geglu_backward_cuda(const Types& types, const void* dy, const void* gate_up,
                                void* d_gate_up, int64_t rows, int64_t f, cudaStream_t stream);

// Parameters of operators::clamped_swiglu.
struct GateClamp {
  double limit = 0.0;
  double alpha = 0.0;
};
// operators::clamped_swiglu and its gradient.
cudaError_t clamped_swiglu_cuda(const Types& types, const GateClamp& clamp, const void* gate_up,
                                void* out, int64_t rows, int64_t f, cudaStream_t stream);
cudaError_t clamped_swiglu_backward_cuda(const Types& types, const GateClamp& clamp, const void* dy,
                                         const void* gate_up, void* d_gate_up, int64_t rows,
                                         int64_t f, cudaStream_t stream);

}  // namespace ringside::engine
