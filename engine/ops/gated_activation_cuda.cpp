// CUDA implementation of the gated activations. This object registers it when it is linked: link it
// as an object, not from an archive.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "engine/ops/cuda_tensors.h"
#include "engine/ops/gated_activation_kernel.h"

namespace ringside::engine {
namespace {

// launch(types, gate_up, out, rows, f, stream)
template <class Launch>
at::Tensor gated_on_cuda(const at::Tensor& gate_up_any, const Launch& launch) {
  const c10::cuda::CUDAGuard guard(gate_up_any.device());
  const at::Tensor gate_up = gate_up_any.contiguous();
  const int64_t s = gate_up.size(0), f = gate_up.size(1) / 2;
  const at::Tensor out = at::empty({s, f}, gate_up.options());
  C10_CUDA_CHECK(launch(types_of(gate_up), gate_up.const_data_ptr(), out.mutable_data_ptr(), s, f,
                        c10::cuda::getCurrentCUDAStream()));
  return out;
}

// launch(types, dy, gate_up, d_gate_up, rows, f, stream)
template <class Launch>
at::Tensor gated_backward_on_cuda(const at::Tensor& dy_any, const at::Tensor& gate_up_any,
                                  const Launch& launch) {
  check_on(gate_up_any, {dy_any});
  const c10::cuda::CUDAGuard guard(gate_up_any.device());
  const at::Tensor gate_up = gate_up_any.contiguous(), dy = dy_any.contiguous();
  const at::Tensor d_gate_up = at::empty(gate_up.sizes(), gate_up.options());
  C10_CUDA_CHECK(launch(types_of(gate_up), dy.const_data_ptr(), gate_up.const_data_ptr(),
                        d_gate_up.mutable_data_ptr(), gate_up.size(0), gate_up.size(1) / 2,
                        c10::cuda::getCurrentCUDAStream()));
  return d_gate_up;
}

at::Tensor swiglu_on_cuda(const at::Tensor& gate_up) { return gated_on_cuda(gate_up, swiglu_cuda); }

at::Tensor swiglu_backward_on_cuda(const at::Tensor& dy, const at::Tensor& gate_up) {
  return gated_backward_on_cuda(dy, gate_up, swiglu_backward_cuda);
}

at::Tensor geglu_on_cuda(const at::Tensor& gate_up) { return gated_on_cuda(gate_up, geglu_cuda); }

at::Tensor geglu_backward_on_cuda(const at::Tensor& dy, const at::Tensor& gate_up) {
  return gated_backward_on_cuda(dy, gate_up, geglu_backward_cuda);
}

at::Tensor clamped_swiglu_on_cuda(const at::Tensor& gate_up, double limit, double alpha) {
  return gated_on_cuda(gate_up, [&](const Types& types, auto... arguments) {
    return clamped_swiglu_cuda(types, {limit, alpha}, arguments...);
  });
}

at::Tensor clamped_swiglu_backward_on_cuda(const at::Tensor& dy, const at::Tensor& gate_up,
                                           double limit, double alpha) {
  return gated_backward_on_cuda(dy, gate_up, [&](const Types& types, auto... arguments) {
    return clamped_swiglu_backward_cuda(types, {limit, alpha}, arguments...);
  });
}

TORCH_LIBRARY_IMPL(ringside, CUDA, m) {
  m.impl("swiglu", TORCH_FN(swiglu_on_cuda));
  m.impl("swiglu_backward", TORCH_FN(swiglu_backward_on_cuda));
  m.impl("geglu", TORCH_FN(geglu_on_cuda));
  m.impl("geglu_backward", TORCH_FN(geglu_backward_on_cuda));
  m.impl("clamped_swiglu", TORCH_FN(clamped_swiglu_on_cuda));
  m.impl("clamped_swiglu_backward", TORCH_FN(clamped_swiglu_backward_on_cuda));
}

}  // namespace
}  // namespace ringside::engine
