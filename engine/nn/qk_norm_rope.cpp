#include "engine/nn/qk_norm_rope.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "engine/nn/checks.h"
#include "engine/nn/operators.h"

namespace ringside::engine {
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
