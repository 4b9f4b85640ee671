// Operators of the decoder in LibTorch's dispatcher, library `ringside`. The device of the tensors
// picks the implementation: CPU from ATen's operators (cpu_operators.cpp), CUDA from our kernels
// (cuda/). A call here is one call of the dispatcher, below autograd. Autograd is in the functions
// of rms_norm.h, qk_norm_rope.h, swiglu.h and token_scores.h, which also check their arguments.
//
// Shapes: s = tokens, E = hidden size, N = heads given, H = query heads, K = key heads, D = head
// dim, F = MLP size, c = rows of a chunk, V = vocabulary. acc = the dtype of sums: fp64 for
// doubles, otherwise fp32; fp32 for a norm with in_fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace ringside::engine::operators {

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps). x * rstd is rounded to x's dtype
// before the weight is applied. With plus_one y = x * rstd * (1 + weight), rounded once.
// Shapes: x [..., E], weight [E]; returns y like x, rstd [..., 1] in acc.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, bool in_fp32, bool plus_one);

// sum = x + branch, and the norm of the sum. Returns sum, y, rstd.
// Shapes: branch like x; the rest as rms_norm.
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x,
                                                            const at::Tensor& branch,
                                                            const at::Tensor& weight, double eps,
                                                            bool in_fp32, bool plus_one);

// Gradients of a norm's input and weight, the latter in the wider of acc and the weight's dtype.
// d_sum, the gradient that reaches the input directly, is added to the first.
// Shapes: dy, x and d_sum [..., E], rstd as rms_norm returned it; returns dx like x, d_weight [E].
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& d_sum,
                                                     bool plus_one);

// The first H + K of the heads, normed over D (where the norms are given) and rotated.
// Shapes: heads [s, N, D] with a dense last dim: H query heads, K key heads, others; norms [D];
// cos, sin [s, 1, D/2]; returns [s, H + K, D] and rstd [s, H + K, 1], or [0] without norms.
std::tuple<at::Tensor, at::Tensor> qk_norm_rope(const at::Tensor& heads_sND, int64_t query_heads,
                                                int64_t key_heads,
                                                const std::optional<at::Tensor>& q_norm,
                                                const std::optional<at::Tensor>& k_norm,
                                                const at::Tensor& cos, const at::Tensor& sin,
                                                double eps, bool in_fp32, bool plus_one);

// Gradients of the heads and the norms. The heads behind H + K are values: dv is copied to them.
// Shapes: dq [s, H, D], dk [s, K, D], dv [s, N - H - K, D]; returns d_heads [s, N, D] and d_norms
// [2, D] (query, key) in the wider of acc and the norms' dtype, or [0] without norms.
std::tuple<at::Tensor, at::Tensor> qk_norm_rope_backward(
    const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& heads_sND,
    const std::optional<at::Tensor>& q_norm, const std::optional<at::Tensor>& k_norm,
    const at::Tensor& rstd, const at::Tensor& cos, const at::Tensor& sin, bool plus_one);

// silu(gate) * up of [gate | up], and its gradient.
// Shapes: gate_up [s, 2F], dy [s, F]; returns [s, F], the gradient [s, 2F].
at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

// Log-prob of each row's target, entropy and log-sum-exp of softmax(logits / temperature).
// Shapes: logits [c, V]; targets [c] int64; temperature and the results [c] in acc. On CUDA all are
// contiguous.
// Throws: c10::Error on arguments that are not so. On the CPU also on a target outside the
// vocabulary, which CUDA does not check.
void token_scores(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                  const at::Tensor& temperature_c, const at::Tensor& logprobs_c,
                  const at::Tensor& entropy_c, const at::Tensor& lse_c);

// Replaces the logits by their gradient. g_logprobs and g_entropy are the results' gradients
// divided by the temperature.
// Shapes: as token_scores; lse and entropy are its results.
void token_scores_backward(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                           const at::Tensor& temperature_c, const at::Tensor& lse_c,
                           const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                           const std::optional<at::Tensor>& g_entropy_c);

// sum += a^T b, with products and sums in sum's dtype, which may be wider than a's and b's.
// Shapes: sum [m, n], a [k, m], b [k, n].
void add_transposed_mm(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace ringside::engine::operators
