#include "engine/nn/cpu_operators.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ringside::engine::cpu {
namespace {

at::ScalarType norm_dtype(at::ScalarType dtype, bool in_fp32) {
  return dtype == at::kDouble && !in_fp32 ? at::kDouble : at::kFloat;
}

at::Tensor mean_square(const at::Tensor& x, bool in_fp32) {
  if (in_fp32) {
    return x.pow(2).mean(-1, /*keepdim=*/true);  // bit-identical to transformers
  }
  // One reduction kernel; the rest works on one number a row.
  const double root_dim = std::sqrt(static_cast<double>(x.size(-1)));
  return at::linalg_vector_norm(x, 2, at::IntArrayRef({-1}), /*keepdim=*/true)
      .div_(root_dim)
      .square_();
}

// What a norm multiplies by, in the dtype of its sums.
at::Tensor factor_of(const at::Tensor& weight, at::ScalarType acc, bool plus_one) {
  return plus_one ? weight.to(acc).add(1) : weight.to(acc);
}

struct NormGrads {
  at::Tensor d_normed;  // to be multiplied by rstd
  at::Tensor d_weight;
};

// With n = x * rstd and g = dy * w:  dx = rstd * (g - n * mean(g * n)),  dw = sum over rows of dy
// * n. The weight's shape is the tail of x's.
NormGrads norm_grads(const at::Tensor& dy_any, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& rstd, bool plus_one) {
  const at::ScalarType acc = rstd.scalar_type();
  const at::Tensor dy = dy_any.to(acc);
  const at::Tensor w = factor_of(weight, acc, plus_one);
  const at::Tensor normed = x.to(acc) * rstd;
  at::Tensor product = dy * normed;
  const at::Tensor d_weight =
      product.sum_to_size(weight.sizes()).to(c10::promoteTypes(weight.scalar_type(), acc));
  const at::Tensor mean = product.mul_(w).mean(-1, /*keepdim=*/true);
  return {(dy * w).addcmul_(normed, mean, -1), d_weight};
}

// to1 = x1 cos - x2 sin, to2 = x2 cos + x1 sin. With `sign` -1 the inverse rotation.
void rotate(const at::Tensor& to_sND, const at::Tensor& x_sND, const at::Tensor& cos,
            const at::Tensor& sin, double sign) {
  const int64_t half = cos.size(-1);
  const at::Tensor x1 = x_sND.narrow(-1, 0, half), x2 = x_sND.narrow(-1, half, half);
  at::Tensor to1 = to_sND.narrow(-1, 0, half), to2 = to_sND.narrow(-1, half, half);
  at::mul_out(to1, x1, cos);
  at::mul_out(to2, x2, cos);
  to1.addcmul_(x2, sin, -sign);
  to2.addcmul_(x1, sin, sign);
}

// The norms' weights, one row a head.
at::Tensor weight_of_heads(const at::Tensor& q_norm, const at::Tensor& k_norm, int64_t query_heads,
                           int64_t key_heads) {
  const int64_t d = q_norm.size(0);
  return at::cat({q_norm.expand({query_heads, d}), k_norm.expand({key_heads, d})});
}

at::ScalarType score_dtype(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, bool in_fp32, bool plus_one) {
  const at::Tensor x_acc = x.to(norm_dtype(x.scalar_type(), in_fp32));
  const at::Tensor rstd = mean_square(x_acc, in_fp32).add_(eps).rsqrt_();
  if (plus_one) {
    at::Tensor scaled = (x_acc * rstd).mul_(factor_of(weight, rstd.scalar_type(), true));
    return {scaled.to(x.scalar_type()), rstd};
  }
  at::Tensor normed = (x_acc * rstd).to(x.scalar_type());
  return {normed.mul_(weight), rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x,
                                                            const at::Tensor& branch,
                                                            const at::Tensor& weight, double eps,
                                                            bool in_fp32, bool plus_one) {
  const at::Tensor sum = x + branch;
  const auto [y, rstd] = cpu::rms_norm(sum, weight, eps, in_fp32, plus_one);
  return {sum, y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& d_sum,
                                                     bool plus_one) {
  NormGrads grads = norm_grads(dy, x, weight, rstd, plus_one);
  at::Tensor dx = grads.d_normed.mul_(rstd).to(x.scalar_type());
  if (d_sum) {
    dx.add_(*d_sum);
  }
  return {dx, grads.d_weight};
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope(const at::Tensor& heads_sND, int64_t query_heads,
                                                int64_t key_heads,
                                                const std::optional<at::Tensor>& q_norm,
                                                const std::optional<at::Tensor>& k_norm,
                                                const at::Tensor& cos, const at::Tensor& sin,
                                                double eps, bool in_fp32, bool plus_one) {
  at::Tensor x = heads_sND.narrow(1, 0, query_heads + key_heads);
  at::Tensor rstd = at::empty({0}, x.options());
  if (q_norm) {
    std::tie(x, rstd) = cpu::rms_norm(x, weight_of_heads(*q_norm, *k_norm, query_heads, key_heads),
                                      eps, in_fp32, plus_one);
  }
  const at::Tensor y = at::empty(x.sizes(), x.options());
  rotate(y, x, cos, sin, 1);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_backward(
    const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& heads_sND,
    const std::optional<at::Tensor>& q_norm, const std::optional<at::Tensor>& k_norm,
    const at::Tensor& rstd, const at::Tensor& cos, const at::Tensor& sin, bool plus_one) {
  const int64_t h = dq.size(1), k = dk.size(1), d = heads_sND.size(2);
  const at::Tensor d_heads = at::empty(heads_sND.sizes(), heads_sND.options());
  at::Tensor d_qk = d_heads.narrow(1, 0, h + k);
  d_heads.narrow(1, h + k, heads_sND.size(1) - h - k).copy_(dv);
  const at::Tensor turned_back = q_norm ? at::empty(d_qk.sizes(), d_qk.options()) : d_qk;
  rotate(turned_back.narrow(1, 0, h), dq, cos, sin, -1);
  rotate(turned_back.narrow(1, h, k), dk, cos, sin, -1);
  if (!q_norm) {
    return {d_heads, at::empty({0}, heads_sND.options())};
  }
  const NormGrads grads = norm_grads(turned_back, heads_sND.narrow(1, 0, h + k),
                                     weight_of_heads(*q_norm, *k_norm, h, k), rstd, plus_one);
  at::mul_out(d_qk, grads.d_normed, rstd);
  const at::Tensor d_norms = at::empty({2, d}, grads.d_weight.options());
  d_norms.select(0, 0).copy_(grads.d_weight.narrow(0, 0, h).sum(0));
  d_norms.select(0, 1).copy_(grads.d_weight.narrow(0, h, k).sum(0));
  return {d_heads, d_norms};
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t f = gate_up.size(1) / 2;
  return at::silu(gate_up.narrow(1, 0, f)).mul_(gate_up.narrow(1, f, f));
}

// Writes both halves into one buffer, which saves a cat.
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const int64_t f = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, f), up = gate_up.narrow(1, f, f);
  at::Tensor d_gate_up = at::empty(gate_up.sizes(), gate_up.options());
  at::Tensor d_gate = d_gate_up.narrow(1, 0, f), d_up = d_gate_up.narrow(1, f, f);
  at::silu_backward_out(d_gate, dy * up, gate);
  at::mul_out(d_up, dy, at::silu(gate));
  return d_gate_up;
}

void token_scores(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                  const at::Tensor& temperature_c, const at::Tensor& logprobs_c,
                  const at::Tensor& entropy_c, const at::Tensor& lse_c) {
  at::Tensor tempered_cV = logits_cV.to(score_dtype(logits_cV)) / temperature_c.unsqueeze(1);
  const at::Tensor logp_cV = at::log_softmax(tempered_cV, -1);
  const at::Tensor targets_c1 = targets_c.unsqueeze(1);
  logprobs_c.copy_(logp_cV.gather(1, targets_c1).squeeze(1));
  lse_c.copy_(tempered_cV.gather(1, targets_c1).squeeze(1)).sub_(logprobs_c);
  at::exp_out(tempered_cV, logp_cV);  // in the tempered logits' place
  entropy_c.copy_(tempered_cV.mul_(logp_cV).sum(1).neg_());
}

//   d logits = g_lp * (onehot - p) - g_H * p * (log p + H)
// The log-softmax is computed again: with the log-sum-exp alone it would be rounded otherwise.
void token_scores_backward(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                           const at::Tensor& temperature_c, const at::Tensor& /*lse_c*/,
                           const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                           const std::optional<at::Tensor>& g_entropy_c) {
  at::Tensor grad_cV = logits_cV.to(score_dtype(logits_cV));
  at::Tensor logp_cV = at::log_softmax(grad_cV.div_(temperature_c.unsqueeze(1)), -1);
  at::exp_out(grad_cV, logp_cV);
  if (g_entropy_c) {
    logp_cV.add_(entropy_c.unsqueeze(1))
        .mul_(g_entropy_c->unsqueeze(1))
        .add_(g_logprobs_c.unsqueeze(1));
    grad_cV.mul_(logp_cV.neg_());
  } else {
    grad_cV.mul_(g_logprobs_c.neg().unsqueeze(1));
  }
  grad_cV.scatter_add_(1, targets_c.unsqueeze(1), g_logprobs_c.unsqueeze(1));
  logits_cV.copy_(grad_cV);
}

void add_transposed_mm(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType acc = sum.scalar_type();
  at::Tensor target = sum;
  target.addmm_(a.t().to(acc), b.to(acc));
}

}  // namespace ringside::engine::cpu
