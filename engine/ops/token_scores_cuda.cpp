// CUDA implementation of the token scores. This object registers it when it is linked: link it as
// an object, not from an archive.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "engine/ops/cuda_tensors.h"
#include "engine/ops/token_scores_kernel.h"

namespace ringside::engine {
namespace {

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

void token_scores_on_cuda(const at::Tensor& logits_cV, const at::Tensor& targets_c,
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

void token_scores_backward_on_cuda(const at::Tensor& logits_cV, const at::Tensor& targets_c,
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

TORCH_LIBRARY_IMPL(ringside, CUDA, m) {
  m.impl("token_scores", TORCH_FN(token_scores_on_cuda));
  m.impl("token_scores_backward", TORCH_FN(token_scores_backward_on_cuda));
  // The kernel reads the log-sum-exp and the entropy, and compares each word with the target.
  m.impl("token_scores_part_backward", TORCH_FN(token_scores_backward_on_cuda));
}

}  // namespace
}  // namespace ringside::engine
