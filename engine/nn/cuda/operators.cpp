// CUDA implementations of the operators in engine/nn/operators.h. This object registers them when
// it is linked: link it as an object, not from an archive.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "engine/nn/cuda/kernels.h"

namespace ringside::engine {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

Types types_of(const at::Tensor& tensor, bool sums_in_fp32 = false) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return {Element::kBFloat16, true};
    case at::kHalf:
      return {Element::kHalf, true};
    case at::kFloat:
      return {Element::kFloat, true};
    case at::kDouble:
      return {Element::kDouble, sums_in_fp32};
    default:
      TORCH_CHECK(false, "CUDA kernels of the decoder take bf16, fp16, fp32 and fp64, got ",
                  tensor.scalar_type());
  }
}

// Of a tensor and its sums as they were saved.
Types types_of(const at::Tensor& tensor, const at::Tensor& sums) {
  return types_of(tensor, sums.scalar_type() == at::kFloat);
}

at::TensorOptions sums_of(const at::Tensor& tensor, const Types& types) {
  return tensor.options().dtype(types.sums_in_fp32 ? at::kFloat : at::kDouble);
}

const void* data_or_null(const OptionalTensor& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}

OptionalTensor contiguous(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(tensor->contiguous()) : std::nullopt;
}

void check_on(const at::Tensor& first, std::initializer_list<at::Tensor> others) {
  for (const at::Tensor& other : others) {
    TORCH_CHECK(other.device() == first.device(), "CUDA kernels of the decoder: tensors on ",
                first.device(), " and ", other.device());
  }
}

std::vector<int64_t> shape_of_rstd(const at::Tensor& x) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = 1;
  return shape;
}

int64_t rows_of(const at::Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

// x, its norm and rstd. With a branch the first is x + branch.
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm(const at::Tensor& x_any,
                                                    const OptionalTensor& branch_any,
                                                    const at::Tensor& weight_any, double eps,
                                                    bool in_fp32, bool plus_one) {
  check_on(x_any, {weight_any, branch_any.value_or(weight_any)});
  const c10::cuda::CUDAGuard guard(x_any.device());
  const at::Tensor x = x_any.contiguous(), weight = weight_any.contiguous();
  const OptionalTensor branch = contiguous(branch_any);
  const Types types = types_of(x, in_fp32);
  const at::Tensor sum = branch ? at::empty(x.sizes(), x.options()) : x;
  const at::Tensor y = at::empty(x.sizes(), x.options());
  const at::Tensor rstd = at::empty(shape_of_rstd(x), sums_of(x, types));
  const NormArgs args{.x = x.const_data_ptr(),
                      .branch = data_or_null(branch),
                      .weight = weight.const_data_ptr(),
                      .sum = branch ? sum.mutable_data_ptr() : nullptr,
                      .y = y.mutable_data_ptr(),
                      .rstd = rstd.mutable_data_ptr(),
                      .rows = rows_of(x),
                      .size = x.size(-1),
                      .eps = eps,
                      .plus_one = plus_one};
  C10_CUDA_CHECK(rms_norm_cuda(types, args, c10::cuda::getCurrentCUDAStream()));
  return {sum, y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, bool in_fp32, bool plus_one) {
  const auto [same, y, rstd] = norm(x, std::nullopt, weight, eps, in_fp32, plus_one);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x,
                                                            const at::Tensor& branch,
                                                            const at::Tensor& weight, double eps,
                                                            bool in_fp32, bool plus_one) {
  return norm(x, branch, weight, eps, in_fp32, plus_one);
}

// Of a weight's gradient: the wider of the weight's dtype and that of the sums.
at::TensorOptions gradient_of(const at::Tensor& weight, const at::Tensor& rstd) {
  return weight.options().dtype(c10::promoteTypes(weight.scalar_type(), rstd.scalar_type()));
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& dy_any, const at::Tensor& x_any, const at::Tensor& weight_any,
    const at::Tensor& rstd, const OptionalTensor& d_sum_any, bool plus_one) {
  check_on(x_any, {dy_any, weight_any, rstd, d_sum_any.value_or(rstd)});
  const c10::cuda::CUDAGuard guard(x_any.device());
  const at::Tensor x = x_any.contiguous(), dy = dy_any.contiguous();
  const at::Tensor weight = weight_any.contiguous();
  const OptionalTensor d_sum = contiguous(d_sum_any);
  const Types types = types_of(x, rstd);
  const int64_t rows = rows_of(x), size = x.size(-1);
  TORCH_CHECK(size * rstd.element_size() <= 48 << 10, "rms_norm_backward on CUDA: rows of ", size,
              " elements with sums in ", rstd.scalar_type(), " do not fit into shared memory");
  const at::Tensor dx = at::empty(x.sizes(), x.options());
  const at::Tensor d_weight = at::empty({size}, gradient_of(weight, rstd));
  const at::Tensor partial = at::empty({norm_grad_blocks(rows), size}, rstd.options());
  const NormGradArgs args{.dy = dy.const_data_ptr(),
                          .x = x.const_data_ptr(),
                          .weight = weight.const_data_ptr(),
                          .rstd = rstd.const_data_ptr(),
                          .d_sum = data_or_null(d_sum),
                          .dx = dx.mutable_data_ptr(),
                          .partial = partial.mutable_data_ptr(),
                          .d_weight = d_weight.mutable_data_ptr(),
                          .rows = rows,
                          .size = size,
                          .plus_one = plus_one};
  C10_CUDA_CHECK(rms_norm_backward_cuda(types, args, c10::cuda::getCurrentCUDAStream()));
  return {dx, d_weight};
}

// The kernels read heads at any distance, but each densely.
at::Tensor dense_heads(const at::Tensor& heads_sND) {
  return heads_sND.stride(2) == 1 ? heads_sND : heads_sND.contiguous();
}

HeadTensor head_tensor(const at::Tensor& heads_sND) {
  // The struct also stands for outputs; inputs are not written.
  return {const_cast<void*>(heads_sND.const_data_ptr()), heads_sND.stride(0), heads_sND.stride(1),
          heads_sND.size(1)};
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope(const at::Tensor& heads_any, int64_t query_heads,
                                                int64_t key_heads, const OptionalTensor& q_norm_any,
                                                const OptionalTensor& k_norm_any,
                                                const at::Tensor& cos_any,
                                                const at::Tensor& sin_any, double eps, bool in_fp32,
                                                bool plus_one) {
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

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_backward(
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

at::Tensor swiglu(const at::Tensor& gate_up_any) {
  const c10::cuda::CUDAGuard guard(gate_up_any.device());
  const at::Tensor gate_up = gate_up_any.contiguous();
  const int64_t s = gate_up.size(0), f = gate_up.size(1) / 2;
  const at::Tensor out = at::empty({s, f}, gate_up.options());
  C10_CUDA_CHECK(swiglu_cuda(types_of(gate_up), gate_up.const_data_ptr(), out.mutable_data_ptr(), s,
                             f, c10::cuda::getCurrentCUDAStream()));
  return out;
}

at::Tensor swiglu_backward(const at::Tensor& dy_any, const at::Tensor& gate_up_any) {
  check_on(gate_up_any, {dy_any});
  const c10::cuda::CUDAGuard guard(gate_up_any.device());
  const at::Tensor gate_up = gate_up_any.contiguous(), dy = dy_any.contiguous();
  const at::Tensor d_gate_up = at::empty(gate_up.sizes(), gate_up.options());
  C10_CUDA_CHECK(swiglu_backward_cuda(types_of(gate_up), dy.const_data_ptr(),
                                      gate_up.const_data_ptr(), d_gate_up.mutable_data_ptr(),
                                      gate_up.size(0), gate_up.size(1) / 2,
                                      c10::cuda::getCurrentCUDAStream()));
  return d_gate_up;
}

ScoreArgs score_args(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                     const at::Tensor& temperature_c) {
  TORCH_CHECK(
      logits_cV.is_contiguous() && targets_c.is_contiguous() && temperature_c.is_contiguous(),
      "token scores on CUDA: logits ", logits_cV.sizes(), ", targets and temperature must ",
      "be contiguous");
  return {logits_cV.mutable_data_ptr(), targets_c.const_data_ptr<int64_t>(),
          temperature_c.const_data_ptr(), logits_cV.size(0), logits_cV.size(1)};
}

// The arrays with one number a row: contiguous and in the dtype of sums.
void check_numbers(const at::Tensor& logits, std::initializer_list<at::Tensor> numbers) {
  check_on(logits, numbers);
  const auto acc = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  for (const at::Tensor& array : numbers) {
    TORCH_CHECK(
        array.is_contiguous() && array.scalar_type() == acc && array.numel() == logits.size(0),
        "token scores on CUDA: numbers ", array.scalar_type(), " ", array.sizes(), " for logits ",
        logits.sizes(), " of ", logits.scalar_type());
  }
}

void token_scores(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                  const at::Tensor& temperature_c, const at::Tensor& logprobs_c,
                  const at::Tensor& entropy_c, const at::Tensor& lse_c) {
  check_on(logits_cV, {targets_c});
  check_numbers(logits_cV, {temperature_c, logprobs_c, entropy_c, lse_c});
  const c10::cuda::CUDAGuard guard(logits_cV.device());
  C10_CUDA_CHECK(token_scores_cuda(types_of(logits_cV),
                                   score_args(logits_cV, targets_c, temperature_c),
                                   logprobs_c.mutable_data_ptr(), entropy_c.mutable_data_ptr(),
                                   lse_c.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
}

void token_scores_backward(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                           const at::Tensor& temperature_c, const at::Tensor& lse_c,
                           const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                           const OptionalTensor& g_entropy_c) {
  check_on(logits_cV, {targets_c});
  check_numbers(logits_cV, {temperature_c, lse_c, entropy_c, g_logprobs_c,
                            g_entropy_c.value_or(g_logprobs_c)});
  const c10::cuda::CUDAGuard guard(logits_cV.device());
  const ScoreGrads grads{lse_c.const_data_ptr(), entropy_c.const_data_ptr(),
                         g_logprobs_c.const_data_ptr(), data_or_null(g_entropy_c)};
  C10_CUDA_CHECK(token_scores_backward_cuda(types_of(logits_cV),
                                            score_args(logits_cV, targets_c, temperature_c), grads,
                                            c10::cuda::getCurrentCUDAStream()));
}

// The GEMM reads both factors as they are and adds in sum's dtype.
void add_transposed_mm(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor target = sum;
  if (a.scalar_type() == sum.scalar_type()) {
    target.addmm_(a.t(), b);
  } else {
    at::addmm_out(target, target, a.t(), b, sum.scalar_type());
  }
}

TORCH_LIBRARY_IMPL(ringside, CUDA, m) {
  m.impl("rms_norm", TORCH_FN(rms_norm));
  m.impl("add_rms_norm", TORCH_FN(add_rms_norm));
  m.impl("rms_norm_backward", TORCH_FN(rms_norm_backward));
  m.impl("qk_norm_rope", TORCH_FN(qk_norm_rope));
  m.impl("qk_norm_rope_backward", TORCH_FN(qk_norm_rope_backward));
  m.impl("swiglu", TORCH_FN(swiglu));
  m.impl("swiglu_backward", TORCH_FN(swiglu_backward));
  m.impl("token_scores", TORCH_FN(token_scores));
  m.impl("token_scores_backward", TORCH_FN(token_scores_backward));
  m.impl("add_transposed_mm", TORCH_FN(add_transposed_mm));
}

}  // namespace
}  // namespace ringside::engine
