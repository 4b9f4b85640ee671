#include "engine/nn/token_scores.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType score_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// log softmax(hidden head^T / temperature) of rows [begin, begin + rows). The GEMM runs in compute
// dtype, the rest in fp32 or fp64.
at::Tensor chunk_log_softmax(const at::Tensor& hidden_cE, const at::Tensor& head_VE,
                             const at::Tensor& temperature_c) {
  const at::ScalarType acc = score_dtype(hidden_cE.scalar_type());
  at::Tensor logits_cV = at::mm(hidden_cE, head_VE.t()).to(acc);
  return at::log_softmax(logits_cV.div_(temperature_c.unsqueeze(1)), -1);
}

// Gradient of the logits, from their log softmax (overwritten). g_lp and g_H are the gradients of
// log-prob and entropy, already divided by the temperature. g_H may be undefined.
//   d logits = g_lp * (onehot - p) - g_H * p * (log p + H)
at::Tensor chunk_logits_grad(at::Tensor logp_cV, const at::Tensor& targets_c,
                             const at::Tensor& g_lp_c, const at::Tensor& g_entropy_c,
                             const at::Tensor& entropy_c) {
  at::Tensor grad_cV = at::exp(logp_cV);
  if (g_entropy_c.defined()) {
    logp_cV.add_(entropy_c.unsqueeze(1)).mul_(g_entropy_c.unsqueeze(1)).add_(g_lp_c.unsqueeze(1));
    grad_cV.mul_(logp_cV.neg_());
  } else {
    grad_cV.mul_(g_lp_c.neg().unsqueeze(1));
  }
  return grad_cV.scatter_add_(1, targets_c.unsqueeze(1), g_lp_c.unsqueeze(1));
}

struct TokenScoresFunction : torch::autograd::Function<TokenScoresFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden_nE,
                               const at::Tensor& head_VE, const at::Tensor& targets_n,
                               const at::Tensor& temperature_n, int64_t chunk_rows) {
    const int64_t n = hidden_nE.size(0);
    const auto options = hidden_nE.options().dtype(score_dtype(hidden_nE.scalar_type()));
    const at::Tensor temperature = temperature_n.to(options);
    const at::Tensor logprobs_n = at::empty({n}, options);
    const at::Tensor entropy_n = at::empty({n}, options);
    for (int64_t begin = 0; begin < n; begin += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, n - begin);
      const at::Tensor logp_cV = chunk_log_softmax(hidden_nE.narrow(0, begin, rows), head_VE,
                                                   temperature.narrow(0, begin, rows));
      const at::Tensor targets_c1 = targets_n.narrow(0, begin, rows).unsqueeze(1);
      logprobs_n.narrow(0, begin, rows).copy_(logp_cV.gather(1, targets_c1).squeeze(1));
      entropy_n.narrow(0, begin, rows).copy_(at::exp(logp_cV).mul_(logp_cV).sum(1).neg_());
    }
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({hidden_nE, head_VE, targets_n, temperature, entropy_n});
    ctx->saved_data["chunk_rows"] = chunk_rows;
    return {logprobs_n, entropy_n};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &hidden_nE = saved[0], &head_VE = saved[1], &targets_n = saved[2];
    const at::Tensor &temperature_n = saved[3], &entropy_n = saved[4];
    const at::ScalarType acc = entropy_n.scalar_type();
    const int64_t n = hidden_nE.size(0), chunk_rows = ctx->saved_data["chunk_rows"].toInt();
    const at::Tensor g_lp_n =
        grads[0].defined() ? grads[0] / temperature_n : at::zeros_like(entropy_n);
    const at::Tensor g_entropy_n = grads[1].defined() ? grads[1] / temperature_n : at::Tensor();
    at::Tensor d_hidden_nE = at::empty_like(hidden_nE);
    // Many chunks add to the head's gradient, so it is summed in fp32 for every compute dtype.
    at::Tensor d_head_VE = at::zeros(head_VE.sizes(), head_VE.options().dtype(acc));
    for (int64_t begin = 0; begin < n; begin += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, n - begin);
      const auto part = [&](const at::Tensor& x) {
        return x.defined() ? x.narrow(0, begin, rows) : x;
      };
      const at::Tensor hidden_cE = part(hidden_nE);
      const at::Tensor d_logits_cV =
          chunk_logits_grad(chunk_log_softmax(hidden_cE, head_VE, part(temperature_n)),
                            part(targets_n), part(g_lp_n), part(g_entropy_n), part(entropy_n));
      at::Tensor d_hidden_cE = part(d_hidden_nE);
      at::mm_out(d_hidden_cE, d_logits_cV.to(hidden_nE.scalar_type()), head_VE);
      d_head_VE.addmm_(d_logits_cV.t(), hidden_cE.to(acc));
    }
    return {d_hidden_nE, d_head_VE.to(head_VE.scalar_type()), at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

TokenScores token_scores(const at::Tensor& hidden_nE, const at::Tensor& head_VE,
                         const at::Tensor& targets_n, const at::Tensor& temperature_n,
                         int64_t chunk_rows) {
  TORCH_CHECK(hidden_nE.dim() == 2 && head_VE.dim() == 2 && hidden_nE.size(1) == head_VE.size(1) &&
                  hidden_nE.scalar_type() == head_VE.scalar_type(),
              "token_scores: hidden ", hidden_nE.sizes(), " ", hidden_nE.scalar_type(),
              " does not fit the head ", head_VE.sizes(), " ", head_VE.scalar_type());
  const int64_t n = hidden_nE.size(0);
  TORCH_CHECK(
      targets_n.dim() == 1 && targets_n.size(0) == n && targets_n.scalar_type() == at::kLong,
      "token_scores: ", n, " rows need int64 targets [", n, "], got ", targets_n.sizes(), " ",
      targets_n.scalar_type());
  TORCH_CHECK(temperature_n.dim() == 1 && temperature_n.size(0) == n, "token_scores: ", n,
              " rows need temperatures [", n, "], got ", temperature_n.sizes());
  TORCH_CHECK(chunk_rows > 0, "token_scores: chunk_rows must be positive, got ", chunk_rows);
  const variable_list scores =
      TokenScoresFunction::apply(hidden_nE, head_VE, targets_n, temperature_n, chunk_rows);
  return {scores[0], scores[1]};
}

}  // namespace ringside::engine
