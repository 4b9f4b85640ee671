#include "engine/ops/gated_activation_kernel.h"
#include "engine/ops/gated_activation_rows.h"
#include "engine/ops/kernel_parts.cuh"

namespace ringside::engine {
namespace {

template <class T, int kWidth, class Activation>
__global__ void gated_kernel(Activation activation, const T* gate_up, T* out, int64_t items,
                             int64_t f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < items;
       i += step) {
    rows::gated_pack<T, kWidth>(activation, gate_up, out, f, i);
  }
}

template <class T, int kWidth, class Activation>
__global__ void gated_grad_kernel(Activation activation, const T* dy, const T* gate_up,
                                  T* d_gate_up, int64_t items, int64_t f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < items;
       i += step) {
    rows::gated_grad_pack<T, kWidth>(activation, dy, gate_up, d_gate_up, f, i);
  }
}

template <class Activation>
cudaError_t launch(const Types& types, const Activation& activation, const void* gate_up, void* out,
                   int64_t num_rows, int64_t f, cudaStream_t stream) {
  if (num_rows * f == 0) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto) {
    using T = decltype(t);
    return with_width<T>(aligned<T>(f, {gate_up, out}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t items = num_rows * f / kWidth;
      gated_kernel<T, kWidth><<<grid(items, 256), 256, 0, stream>>>(
          activation, static_cast<const T*>(gate_up), static_cast<T*>(out), items, f);
      return cudaGetLastError();
    });
  });
}

template <class Activation>
cudaError_t launch_backward(const Types& types, const Activation& activation, const void* dy,
                            const void* gate_up, void* d_gate_up, int64_t num_rows, int64_t f,
                            cudaStream_t stream) {
  if (num_rows * f == 0) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto) {
    using T = decltype(t);
    return with_width<T>(aligned<T>(f, {dy, gate_up, d_gate_up}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t items = num_rows * f / kWidth;
      gated_grad_kernel<T, kWidth><<<grid(items, 256), 256, 0, stream>>>(
          activation, static_cast<const T*>(dy), static_cast<const T*>(gate_up),
          static_cast<T*>(d_gate_up), items, f);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t swiglu_cuda(const Types& types, const void* gate_up, void* out, int64_t num_rows,
                        int64_t f, cudaStream_t stream) {
  return launch(types, rows::SiluGate{}, gate_up, out, num_rows, f, stream);
}

cudaError_t swiglu_backward_cuda(const Types& types, const void* dy, const void* gate_up,
                                 void* d_gate_up, int64_t num_rows, int64_t f,
                                 cudaStream_t stream) {
  return launch_backward(types, rows::SiluGate{}, dy, gate_up, d_gate_up, num_rows, f, stream);
}

cudaError_t geglu_cuda(const Types& types, const void* gate_up, void* out, int64_t num_rows,
                       int64_t f, cudaStream_t stream) {
  return launch(types, rows::GeluGate{}, gate_up, out, num_rows, f, stream);
}

cudaError_t geglu_backward_cuda(const Types& types, const void* dy, const void* gate_up,
                                void* d_gate_up, int64_t num_rows, int64_t f, cudaStream_t stream) {
  return launch_backward(types, rows::GeluGate{}, dy, gate_up, d_gate_up, num_rows, f, stream);
}

cudaError_t clamped_swiglu_cuda(const Types& types, const GateClamp& clamp, const void* gate_up,
                                void* out, int64_t num_rows, int64_t f, cudaStream_t stream) {
  return launch(types, rows::ClampedGate{clamp.limit, clamp.alpha}, gate_up, out, num_rows, f,
                stream);
}

cudaError_t clamped_swiglu_backward_cuda(const Types& types, const GateClamp& clamp, const void* dy,
                                         const void* gate_up, void* d_gate_up, int64_t num_rows,
                                         int64_t f, cudaStream_t stream) {
  return launch_backward(types, rows::ClampedGate{clamp.limit, clamp.alpha}, dy, gate_up, d_gate_up,
                         num_rows, f, stream);
}

}  // namespace ringside::engine
