// scaled_dot_product_attention() on the stand-in: the CPU's fused kernel, where LibTorch would take
// products and a softmax of its own for a device that it does not know, with other bits. The file
// registers by static initialisers, so it is linked as an object.
#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace ringside::standin {
namespace {

int64_t take_fused(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                   const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(at::SDPBackend::overrideable);
}

using Fused = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                         at::Tensor, at::Tensor, at::Tensor>;

Fused forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const std::optional<at::Tensor>& bias, double dropout, bool causal, bool /*debug*/,
              std::optional<double> scale) {
  auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, bias, scale);
  return {std::move(out), std::move(lse), at::Tensor(), at::Tensor(), q.size(2),
          k.size(2),      at::Tensor(),   at::Tensor(), at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& bias, std::array<bool, 4> /*wanted*/, const at::Tensor& out,
    const at::Tensor& lse, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
    double dropout, bool causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale) {
  const auto mask = bias.defined() ? std::optional(bias) : std::nullopt;
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, q, k, v, out, lse, dropout, causal, mask, scale);
  return {std::move(dq), std::move(dk), std::move(dv), at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_scaled_dot_product_fused_attention_overrideable", forward);
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward", backward);
}

}  // namespace
}  // namespace ringside::standin

namespace at::native {
// The macro names the stub without its namespace.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &ringside::standin::take_fused)
}  // namespace at::native
