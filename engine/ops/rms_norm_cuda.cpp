// CUDA implementation of the norm. This object registers it when it is linked: link it as an
// object, not from an archive.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "engine/ops/cuda_tensors.h"
#include "engine/ops/rms_norm_kernel.h"

namespace ringside::engine {
namespace {

std::vector<int64_t> shape_of_rstd(const at::Tensor& x) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = 1;
  return shape;
}

int64_t rows_of(const at::Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

// x, its norm and rstd. With a branch the first is x + branch.
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_on_cuda(const at::Tensor& x_any,
                                                            const OptionalTensor& branch_any,
                                                            const at::Tensor& weight_any,
                                                            double eps, bool in_fp32,
                                                            bool plus_one) {
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

std::tuple<at::Tensor, at::Tensor> rms_norm_on_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                    double eps, bool in_fp32, bool plus_one) {
  const auto [same, y, rstd] = norm_on_cuda(x, std::nullopt, weight, eps, in_fp32, plus_one);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_on_cuda(const at::Tensor& x,
                                                                    const at::Tensor& branch,
                                                                    const at::Tensor& weight,
                                                                    double eps, bool in_fp32,
                                                                    bool plus_one) {
  return norm_on_cuda(x, branch, weight, eps, in_fp32, plus_one);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_on_cuda(
    const at::Tensor& dy_any, const at::Tensor& x_any, const at::Tensor& weight_any,
    const at::Tensor& rstd, const OptionalTensor& d_sum_any, bool plus_one) {
  check_on(x_any, {dy_any, weight_any, rstd, d_sum_any.value_or(rstd)});
  const c10::cuda::CUDAGuard guard(x_any.device());
  const at::Tensor x = x_any.contiguous(), dy = dy_any.contiguous();
  const at::Tensor weight = weight_any.contiguous();
  const OptionalTensor d_sum = contiguous(d_sum_any);
  const Types types = types_of(x, rstd);
  const int64_t rows = rows_of(x), size = x.size(-1);
  // 32 more: the sums of a block's warps.
  TORCH_CHECK((size + 32) * rstd.element_size() <= 48 << 10, "rms_norm_backward on CUDA: rows of ",
              size, " elements with sums in ", rstd.scalar_type(),
              " do not fit into shared memory");
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

TORCH_LIBRARY_IMPL(ringside, CUDA, m) {
  m.impl("rms_norm", TORCH_FN(rms_norm_on_cuda));
  m.impl("add_rms_norm", TORCH_FN(add_rms_norm_on_cuda));
  m.impl("rms_norm_backward", TORCH_FN(rms_norm_backward_on_cuda));
}

}  // namespace
}  // namespace ringside::engine
