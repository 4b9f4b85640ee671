#include "engine/nn/rope.h"

#include <ATen/ATen.h>

#include <numbers>

namespace ringside::engine {
namespace {

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

}  // namespace ringside::engine
