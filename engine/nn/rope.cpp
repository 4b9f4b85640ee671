#include "engine/nn/rope.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numbers>

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Scales long wavelengths by `factor`, keeps short ones and interpolates between.
// Source: transformers modeling_rope_utils.py, _compute_llama3_parameters.
at::Tensor scale_llama3(const at::Tensor& inv_freq, const Llama3RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const at::Tensor wavelength = at::reciprocal(inv_freq) * (2 * std::numbers::pi);
  const at::Tensor is_long = wavelength > context / scaling.low_freq_factor;
  const at::Tensor is_short = wavelength < context / scaling.high_freq_factor;
  const at::Tensor slowed = at::where(is_long, inv_freq / scaling.factor, inv_freq);
  const at::Tensor smooth = (at::reciprocal(wavelength) * context - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth) * slowed / scaling.factor + smooth * slowed;
  return at::where(is_long.logical_or(is_short), slowed, smoothed);
}

// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. With `sign` -1 the inverse rotation.
at::Tensor rotate(const at::Tensor& x_sHD, const at::Tensor& cos_s1d, const at::Tensor& sin_s1d,
                  double sign) {
  const int64_t half = cos_s1d.size(-1);
  const at::Tensor x1 = x_sHD.narrow(-1, 0, half), x2 = x_sHD.narrow(-1, half, half);
  at::Tensor y_sHD = at::empty(x_sHD.sizes(), x_sHD.options());
  at::Tensor y1 = y_sHD.narrow(-1, 0, half), y2 = y_sHD.narrow(-1, half, half);
  at::mul_out(y1, x1, cos_s1d);
  at::mul_out(y2, x2, cos_s1d);
  y1.addcmul_(x2, sin_s1d, -sign);
  y2.addcmul_(x1, sin_s1d, sign);
  return y_sHD;
}

struct Rope : torch::autograd::Function<Rope> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_sHD,
                            const at::Tensor& cos_s1d, const at::Tensor& sin_s1d) {
    ctx->save_for_backward({cos_s1d, sin_s1d});
    return rotate(x_sHD, cos_s1d, sin_s1d, 1);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rope_inverse_frequencies(int64_t head_dim, double theta,
                                    const std::optional<Llama3RopeScaling>& scaling) {
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat).div_(head_dim);
  const at::Tensor inv_freq = at::reciprocal(at::pow(theta, exponent));
  return scaling ? scale_llama3(inv_freq, *scaling) : inv_freq;
}

RopeTables rope_tables(const at::Tensor& inverse_frequencies_d, const at::Tensor& positions_s,
                       at::ScalarType compute_dtype) {
  const at::Tensor angle_s1d = positions_s.to(at::kFloat).view({-1, 1, 1}) * inverse_frequencies_d;
  return {angle_s1d.cos().to(compute_dtype), angle_s1d.sin().to(compute_dtype)};
}

at::Tensor apply_rope(const at::Tensor& x_sHD, const RopeTables& tables) {
  TORCH_CHECK(x_sHD.dim() == 3 && x_sHD.size(0) == tables.cos_s1d.size(0) &&
                  x_sHD.size(2) == 2 * tables.cos_s1d.size(2),
              "apply_rope: x of shape ", x_sHD.sizes(), " against tables of shape ",
              tables.cos_s1d.sizes());
  return Rope::apply(x_sHD, tables.cos_s1d, tables.sin_s1d);
}

}  // namespace ringside::engine
