#include "engine/ops/qk_norm_rope.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "engine/ops/bf16_rows.h"
#include "engine/ops/checks.h"
#include "engine/ops/dispatch.h"
#include "engine/ops/rms_norm.h"

namespace ringside::engine {
namespace {

// Whether heads of a token follow each other, in bf16 on the CPU.
bool has_bf16_tokens(const at::Tensor& x_sND) {
  return bf16::takes({x_sND.size(0) > 0 ? x_sND.select(0, 0) : x_sND}) && x_sND.numel() > 0;
}

void rotate_bf16(const at::Tensor& to_sND, const at::Tensor& x_sND, const at::Tensor& cos,
                 const at::Tensor& sin, double sign) {
  bf16::rotate({bf16::words(x_sND), x_sND.stride(0), x_sND.size(1)}, bf16::words(cos),
               bf16::words(sin), static_cast<float>(sign), x_sND.size(0), cos.size(-1),
               bf16::words_to_write(to_sND), to_sND.stride(0));
}

// to1 = x1 cos - x2 sin, to2 = x2 cos + x1 sin. With `sign` -1 the inverse rotation.
void rotate(const at::Tensor& to_sND, const at::Tensor& x_sND, const at::Tensor& cos,
            const at::Tensor& sin, double sign) {
  const int64_t half = cos.size(-1);
  if (has_bf16_tokens(to_sND) && has_bf16_tokens(x_sND) && bf16::takes({cos, sin})) {
    rotate_bf16(to_sND, x_sND, cos, sin, sign);
    return;
  }
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

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_on_cpu(const at::Tensor& heads_sND,
                                                       int64_t query_heads, int64_t key_heads,
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

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_backward_on_cpu(
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
  const cpu::NormGradients grads =
      cpu::rms_norm_gradients(turned_back, heads_sND.narrow(1, 0, h + k),
                              weight_of_heads(*q_norm, *k_norm, h, k), rstd, plus_one);
  at::mul_out(d_qk, grads.normed, rstd);
  const at::Tensor d_norms = at::empty({2, d}, grads.weight.options());
  d_norms.select(0, 0).copy_(grads.weight.narrow(0, 0, h).sum(0));
  d_norms.select(0, 1).copy_(grads.weight.narrow(0, h, k).sum(0));
  return {d_heads, d_norms};
}

TORCH_LIBRARY_FRAGMENT(ringside, m) {
  define_operator(
      m,
      "qk_norm_rope(Tensor heads, int query_heads, int key_heads, Tensor? q_norm, Tensor? k_norm, "
      "Tensor cos, Tensor sin, float eps, bool in_fp32, bool plus_one) -> (Tensor, Tensor)",
      TORCH_FN(qk_norm_rope_on_cpu));
  define_operator(
      m,
      "qk_norm_rope_backward(Tensor dq, Tensor dk, Tensor dv, Tensor heads, Tensor? q_norm, "
      "Tensor? k_norm, Tensor rstd, Tensor cos, Tensor sin, bool plus_one) -> (Tensor, Tensor)",
      TORCH_FN(qk_norm_rope_backward_on_cpu));
}

}  // namespace

namespace operators {

std::tuple<at::Tensor, at::Tensor> qk_norm_rope(const at::Tensor& heads_sND, int64_t query_heads,
                                                int64_t key_heads,
                                                const std::optional<at::Tensor>& q_norm,
                                                const std::optional<at::Tensor>& k_norm,
                                                const at::Tensor& cos, const at::Tensor& sin,
                                                double eps, bool in_fp32, bool plus_one) {
  static const Operator<decltype(qk_norm_rope)> op("ringside::qk_norm_rope");
  return op(heads_sND, query_heads, key_heads, q_norm, k_norm, cos, sin, eps, in_fp32, plus_one);
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_backward(
    const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& heads_sND,
    const std::optional<at::Tensor>& q_norm, const std::optional<at::Tensor>& k_norm,
    const at::Tensor& rstd, const at::Tensor& cos, const at::Tensor& sin, bool plus_one) {
  static const Operator<decltype(qk_norm_rope_backward)> op("ringside::qk_norm_rope_backward");
  return op(dq, dk, dv, heads_sND, q_norm, k_norm, rstd, cos, sin, plus_one);
}

}  // namespace operators

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

struct QkNormRope : torch::autograd::Function<QkNormRope> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& heads_sND,
                               const OptionalTensor& q_norm, const OptionalTensor& k_norm,
                               const OptionalTensor& /*q_leaf*/, const OptionalTensor& /*k_leaf*/,
                               const at::Tensor& cos, const at::Tensor& sin, int64_t h, int64_t k,
                               const NormOptions& norm) {
    const auto [qk, rstd] = operators::qk_norm_rope(heads_sND, h, k, q_norm, k_norm, cos, sin,
                                                    norm.eps, norm.in_fp32, norm.plus_one);
    ctx->saved_data["plus_one"] = norm.plus_one;
    // Without norms the backward needs the heads for their shape only; they are saved all the same,
    // as the values are a view of them.
    ctx->save_for_backward(
        {heads_sND, q_norm.value_or(at::Tensor()), k_norm.value_or(at::Tensor()), rstd, cos, sin});
    return {qk.narrow(1, 0, h), qk.narrow(1, h, k),
            heads_sND.narrow(1, h + k, heads_sND.size(1) - h - k)};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [d_heads, d_norms] = operators::qk_norm_rope_backward(
        grads[0], grads[1], grads[2], saved[0], optional_of(saved[1]), optional_of(saved[2]),
        saved[3], saved[4], saved[5], ctx->saved_data["plus_one"].toBool());
    const bool normed = saved[1].defined();
    return {d_heads,
            at::Tensor(),
            at::Tensor(),
            normed ? d_norms.select(0, 0) : at::Tensor(),
            normed ? d_norms.select(0, 1) : at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

RotatedHeads norm_and_rotate(const at::Tensor& heads_sND, HeadCounts counts, const HeadNorms& norms,
                             const RopeTables& tables) {
  const auto [h, k] = counts;
  const auto& [cos, sin] = tables;
  TORCH_CHECK(heads_sND.dim() == 3 && h >= 0 && k >= 0 && h + k <= heads_sND.size(1) &&
                  (heads_sND.stride(2) == 1 || heads_sND.size(2) == 1),
              "norm_and_rotate: ", h, " query and ", k, " key heads of heads ", heads_sND.sizes(),
              " with strides ", heads_sND.strides());
  const int64_t s = heads_sND.size(0), d = heads_sND.size(2);
  TORCH_CHECK(cos.dim() == 3 && cos.size(0) == s && cos.size(1) == 1 && 2 * cos.size(2) == d &&
                  sin.sizes() == cos.sizes(),
              "norm_and_rotate: heads ", heads_sND.sizes(), " need cos and sin [", s, ", 1, ",
              d / 2, "], got ", cos.sizes(), " and ", sin.sizes());
  TORCH_CHECK(norms.query.defined() == norms.key.defined(),
              "norm_and_rotate: the norms of query and key heads come together");
  TORCH_CHECK(!norms.query.defined() || (norms.query.value.sizes() == at::IntArrayRef({d}) &&
                                         norms.key.value.sizes() == at::IntArrayRef({d})),
              "norm_and_rotate: norms of heads ", heads_sND.sizes(), " have weights [", d, "]");
  check_alike("norm_and_rotate", {{"heads", heads_sND},
                                  {"the query norm", norms.query.value},
                                  {"the key norm", norms.key.value},
                                  {"cos", cos},
                                  {"sin", sin}});
  const variable_list parts = QkNormRope::apply(
      heads_sND, optional_of(norms.query.value), optional_of(norms.key.value),
      optional_of(norms.query.leaf), optional_of(norms.key.leaf), cos, sin, h, k, norms.options);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace ringside::engine
