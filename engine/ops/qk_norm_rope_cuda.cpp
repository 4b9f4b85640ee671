// CUDA implementation of norm and rotation of heads. This object registers it when it is linked:
// link it as an object, not from an archive.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "engine/ops/cuda_tensors.h"
#include "engine/ops/qk_norm_rope_kernel.h"
#include "engine/ops/rms_norm_kernel.h"

namespace ringside::engine {
namespace {

// The kernels read heads at any distance, but each densely.
at::Tensor dense_heads(const at::Tensor& heads_sND) {
  return heads_sND.stride(2) == 1 ? heads_sND : heads_sND.contiguous();
}

HeadTensor head_tensor(const at::Tensor& heads_sND) {
  // The struct also stands for outputs; inputs are not written.
  return {const_cast<void*>(heads_sND.const_data_ptr()), heads_sND.stride(0), heads_sND.stride(1),
          heads_sND.size(1)};
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_on_cuda(
    const at::Tensor& heads_any, int64_t query_heads, int64_t key_heads,
    const OptionalTensor& q_norm_any, const OptionalTensor& k_norm_any, const at::Tensor& cos_any,
    const at::Tensor& sin_any, double eps, bool in_fp32, bool plus_one) {
  check_on(heads_any,
           {cos_any, sin_any, q_norm_any.value_or(cos_any), k_norm_any.value_or(cos_any)});
  const c10::cuda::CUDAGuard guard(heads_any.device());
  const at::Tensor heads = dense_heads(heads_any);
  const at::Tensor cos = cos_any.contiguous(), sin = sin_any.contiguous();
  const OptionalTensor q_norm = contiguous(q_norm_any), k_norm = contiguous(k_norm_any);
  const Types types = types_of(heads, in_fp32);
  const int64_t s = heads.size(0), d = heads.size(2), n = query_heads + key_heads;
  const at::Tensor qk = at::empty({s, n, d}, heads.options());
  const at::Tensor rstd =
      q_norm ? at::empty({s, n, 1}, sums_of(heads, types)) : at::empty({0}, heads.options());
  const RotationArgs args{.shape = {s, d, query_heads, key_heads},
                          .q_norm = data_or_null(q_norm),
                          .k_norm = data_or_null(k_norm),
                          .cos = cos.const_data_ptr(),
                          .sin = sin.const_data_ptr(),
                          .rstd = rstd.mutable_data_ptr(),
                          .eps = eps,
                          .plus_one = plus_one};
  C10_CUDA_CHECK(qk_norm_rope_cuda(types, args, head_tensor(heads), head_tensor(qk),
                                   c10::cuda::getCurrentCUDAStream()));
  return {qk, rstd};
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_backward_on_cuda(
    const at::Tensor& dq_any, const at::Tensor& dk_any, const at::Tensor& dv_any,
    const at::Tensor& heads_any, const OptionalTensor& q_norm_any, const OptionalTensor& k_norm_any,
    const at::Tensor& rstd, const at::Tensor& cos_any, const at::Tensor& sin_any, bool plus_one) {
  check_on(heads_any, {dq_any, dk_any, dv_any, rstd, cos_any, sin_any, q_norm_any.value_or(rstd),
                       k_norm_any.value_or(rstd)});
  const c10::cuda::CUDAGuard guard(heads_any.device());
  const at::Tensor dq = dense_heads(dq_any), dk = dense_heads(dk_any), dv = dense_heads(dv_any);
  const at::Tensor heads = dense_heads(heads_any);
  const at::Tensor cos = cos_any.contiguous(), sin = sin_any.contiguous();
  const OptionalTensor q_norm = contiguous(q_norm_any), k_norm = contiguous(k_norm_any);
  const Types types = types_of(heads, rstd);
  const int64_t s = heads.size(0), d = heads.size(2);
  TORCH_CHECK(!q_norm || 16 * d * rstd.element_size() <= 48 << 10,
              "qk_norm_rope_backward on CUDA: a head dim of ", d, " with sums in ",
              rstd.scalar_type(), " does not fit into shared memory");
  const at::Tensor d_heads = at::empty(heads.sizes(), heads.options());
  const at::Tensor d_norms =
      q_norm ? at::empty({2, d}, gradient_of(*q_norm, rstd)) : at::empty({0}, heads.options());
  const int64_t partial_rows = q_norm ? norm_grad_blocks(s * heads.size(1)) : 0;
  const at::Tensor partial = at::empty({partial_rows, 2 * d}, sums_of(heads, types));
  const RotationArgs args{.shape = {s, d, dq.size(1), dk.size(1)},
                          .q_norm = data_or_null(q_norm),
                          .k_norm = data_or_null(k_norm),
                          .cos = cos.const_data_ptr(),
                          .sin = sin.const_data_ptr(),
                          .rstd = const_cast<void*>(rstd.const_data_ptr()),
                          .plus_one = plus_one};
  const HeadGradArgs grads{head_tensor(dq),           head_tensor(dk),
                           head_tensor(dv),           head_tensor(heads),
                           head_tensor(d_heads),      partial.mutable_data_ptr(),
                           d_norms.mutable_data_ptr()};
  C10_CUDA_CHECK(qk_norm_rope_backward_cuda(types, args, grads, c10::cuda::getCurrentCUDAStream()));
  return {d_heads, d_norms};
}

TORCH_LIBRARY_IMPL(ringside, CUDA, m) {
  m.impl("qk_norm_rope", TORCH_FN(qk_norm_rope_on_cuda));
  m.impl("qk_norm_rope_backward", TORCH_FN(qk_norm_rope_backward_on_cuda));
}

}  // namespace
}  // namespace ringside::engine
