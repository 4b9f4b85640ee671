#include "engine/nn/rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace ringside::engine {
namespace {

// theta^(2i/D) for each pair i, in fp32.
at::Tensor wavelengths_over_2pi(int64_t head_dim, double theta) {
  return at::pow(theta, at::arange(0, head_dim, 2, at::kFloat).div_(head_dim));
}

at::Tensor plain(int64_t head_dim, double theta) {
  return at::reciprocal(wavelengths_over_2pi(head_dim, theta));
}

// Source of each: transformers modeling_rope_utils.py, _compute_<type>_parameters.
struct Compute {
  const RopeSettings& settings;

  RopeFrequencies operator()(std::monostate) const {
    return {plain(settings.head_dim, settings.theta)};
  }

  RopeFrequencies operator()(const LinearRope& linear) const {
    return {plain(settings.head_dim, settings.theta).div_(linear.factor)};
  }

  // Of a document up to max_position_embeddings, where the base is theta itself.
  RopeFrequencies operator()(const DynamicRope&) const {
    return {plain(settings.head_dim, settings.theta)};
  }

  RopeFrequencies operator()(const Llama3Rope& scaling) const {
    const at::Tensor inv_freq = plain(settings.head_dim, settings.theta);
    const auto context = static_cast<double>(scaling.original_max_position_embeddings);
    const at::Tensor wavelength = at::reciprocal(inv_freq) * (2 * std::numbers::pi);
    const at::Tensor is_long = wavelength > context / scaling.low_freq_factor;
    const at::Tensor is_short = wavelength < context / scaling.high_freq_factor;
    const at::Tensor slowed = at::where(is_long, inv_freq / scaling.factor, inv_freq);
    const at::Tensor smooth = (at::reciprocal(wavelength) * context - scaling.low_freq_factor) /
                              (scaling.high_freq_factor - scaling.low_freq_factor);
    const at::Tensor smoothed = (1 - smooth) * slowed / scaling.factor + smooth * slowed;
    return {at::where(is_long.logical_or(is_short), slowed, smoothed)};
  }

  RopeFrequencies operator()(const YarnRope& yarn) const {
    const auto [low, high] = correction_range(yarn);
    const at::Tensor ramp =
        ((at::arange(settings.head_dim / 2, at::kFloat) - low) / (high - low)).clamp_(0, 1);
    const at::Tensor kept = 1 - ramp;  // share of the unscaled frequency
    const at::Tensor waves = wavelengths_over_2pi(settings.head_dim, settings.theta);
    return {at::reciprocal(waves * yarn.factor) * (1 - kept) + at::reciprocal(waves) * kept,
            yarn_magnitude(yarn)};
  }

  RopeFrequencies operator()(const LongRope& longrope) const {
    const int64_t original = longrope.original_max_position_embeddings;
    const int64_t longest = settings.max_document_tokens > 0 ? settings.max_document_tokens
                                                             : settings.max_position_embeddings;
    const auto& divisors = longest > original ? longrope.long_factor : longrope.short_factor;
    return {at::reciprocal(at::tensor(divisors, at::kFloat) *
                           wavelengths_over_2pi(settings.head_dim, settings.theta)),
            longrope_magnitude(longrope)};
  }

 private:
  // First and last index of the ramp: pairs that turn beta_fast and beta_slow times within the
  // original context.
  std::pair<double, double> correction_range(const YarnRope& yarn) const {
    const auto dim = static_cast<double>(settings.head_dim);
    const auto context = static_cast<double>(yarn.original_max_position_embeddings);
    const auto index = [&](double turns) {
      return dim * std::log(context / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(settings.theta));
    };
    double low = index(yarn.beta_fast.value_or(32.0));
    double high = index(yarn.beta_slow.value_or(1.0));
    if (yarn.truncate.value_or(true)) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    return {low, low == high ? high + 0.001 : high};
  }

  static double yarn_magnitude(const YarnRope& yarn) {
    const auto scale = [&](double mscale) {
      return yarn.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(yarn.factor) + 1.0;
    };
    const double mscale = yarn.mscale.value_or(0.0);
    const double mscale_all_dim = yarn.mscale_all_dim.value_or(0.0);
    const double derived =
        mscale != 0 && mscale_all_dim != 0 ? scale(mscale) / scale(mscale_all_dim) : scale(1.0);
    return yarn.attention_factor.value_or(derived);
  }

  double longrope_magnitude(const LongRope& longrope) const {
    const auto original = static_cast<double>(longrope.original_max_position_embeddings);
    const double factor =
        longrope.factor.value_or(static_cast<double>(settings.max_position_embeddings) / original);
    const double derived = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
    return longrope.attention_factor.value_or(derived);
  }
};

}  // namespace

RopeFrequencies rope_frequencies(const RopeSettings& settings) {
  RopeFrequencies frequencies = std::visit(Compute{settings}, settings.scaling);
  if (settings.whole_head_dim > settings.head_dim) {
    const int64_t still = (settings.whole_head_dim - settings.head_dim) / 2;
    frequencies.turned = settings.head_dim / 2;
    frequencies.inverse_d =
        at::cat({frequencies.inverse_d, at::zeros({still}, frequencies.inverse_d.options())});
  }
  return frequencies;
}

at::Tensor section_components(const RopeSections& sections, int64_t pairs) {
  const auto& [time, height, width] = sections.sizes;
  TORCH_CHECK(time >= 0 && height >= 0 && width >= 0 && time + height + width <= pairs,
              "rope: sections of ", time, ", ", height, " and ", width, " frequencies of ", pairs);
  std::vector<int64_t> components(pairs, 0);
  for (int64_t j = 0; j < pairs; ++j) {
    const bool is_height =
        sections.interleaved ? j % 3 == 1 && j < 3 * height : j >= time && j < time + height;
    const bool is_width = sections.interleaved ? j % 3 == 2 && j < 3 * width
                                               : j >= time + height && j < time + height + width;
    components[j] = is_height ? 1 : is_width ? 2 : 0;
  }
  return at::tensor(components, at::kLong);
}

namespace {

// The position that each pair of each token turns by.
// Shapes: returns fp32 [s, 1, 1] for all pairs alike, or [s, 1, D/2].
at::Tensor turned_positions(const RopeFrequencies& frequencies, const at::Tensor& positions) {
  if (positions.dim() == 1) {
    return positions.to(at::kFloat).view({-1, 1, 1});
  }
  TORCH_CHECK(positions.dim() == 2 && frequencies.component_d.defined(), "rope: positions ",
              positions.sizes(), ", expected one of each token in a model without sections");
  return positions.to(at::kFloat).t().index_select(1, frequencies.component_d).unsqueeze(1);
}

}  // namespace

RopeTables rope_tables(const RopeFrequencies& frequencies, const at::Tensor& positions,
                       at::ScalarType compute_dtype) {
  const at::Tensor angle_s1d = turned_positions(frequencies, positions) * frequencies.inverse_d;
  at::Tensor cos_s1d = angle_s1d.cos();
  at::Tensor sin_s1d = angle_s1d.sin();
  if (frequencies.magnitude != 1.0) {
    const int64_t turned = frequencies.turned < 0 ? cos_s1d.size(-1) : frequencies.turned;
    cos_s1d.narrow(-1, 0, turned).mul_(frequencies.magnitude);
    sin_s1d.narrow(-1, 0, turned).mul_(frequencies.magnitude);
  }
  return {cos_s1d.to(compute_dtype), sin_s1d.to(compute_dtype)};
}

}  // namespace ringside::engine
