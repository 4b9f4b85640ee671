#include "engine/nn/gated_delta.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ringside::engine {
namespace {

constexpr double kNormEpsilon = 1e-6;

at::Tensor unit_length(const at::Tensor& x, double scale, at::ScalarType sums) {
  const at::Tensor wide = x.to(sums);
  const at::Tensor inverse = at::rsqrt(wide.square().sum(-1, /*keepdim=*/true) + kNormEpsilon);
  return (wide * (inverse * scale)).to(x.scalar_type());
}

}  // namespace

at::Tensor conv_channels(const sp::StateShape& shape, const at::Tensor& channels_SgC) {
  TORCH_CHECK(channels_SgC.dim() == 3 && channels_SgC.size(2) == shape.channels(),
              "delta net: channels ", channels_SgC.sizes(), ", expected ", shape.channels(),
              " of each head group");
  return channels_SgC.narrow(2, 0, shape.conv_channels()).flatten(1);
}

DeltaRows delta_rows(const sp::StateShape& shape, const at::Tensor& channels_SgC,
                     const at::Tensor& convolved_Sc, const at::Tensor& log_decay_gv,
                     const at::Tensor& decay_bias_gv) {
  const int64_t s = channels_SgC.size(0), g = channels_SgC.size(1);
  const int64_t k = shape.key_dim, per_group = shape.values_per_group();
  const auto sums = channels_SgC.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor grouped = convolved_Sc.view({s, g, shape.conv_channels()});
  const at::Tensor gates = channels_SgC.narrow(2, shape.conv_channels(), 2 * per_group).to(sums);
  const at::Tensor strength = gates.narrow(2, 0, per_group);
  const at::Tensor decay =
      at::softplus(gates.narrow(2, per_group, per_group) + decay_bias_gv.to(sums));
  DeltaRows rows;
  rows.q_SkK = unit_length(grouped.narrow(2, 0, k), 1.0 / std::sqrt(static_cast<double>(k)), sums);
  rows.k_SkK = unit_length(grouped.narrow(2, k, k), 1.0, sums);
  rows.v_ShV =
      grouped.narrow(2, 2 * k, shape.out_channels()).reshape({s, g * per_group, shape.value_dim});
  rows.g_Sh = (log_decay_gv.to(sums).exp() * decay).neg().view({s, g * per_group});
  rows.beta_Sh = at::sigmoid(strength).reshape({s, g * per_group});
  return rows;
}

}  // namespace ringside::engine
