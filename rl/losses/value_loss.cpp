#include "rl/losses/value_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace ringside::rl {

at::Tensor value_loss(const at::Tensor& value_n, const at::Tensor& old_value_n,
                      const at::Tensor& return_n, double token_weight, double value_clip,
                      Figures& figures) {
  TORCH_CHECK(value_n.sizes() == return_n.sizes() && value_n.sizes() == old_value_n.sizes(),
              "value loss: ", value_n.sizes(), " values, ", old_value_n.sizes(), " old values, ",
              return_n.sizes(), " returns");
  TORCH_CHECK(value_clip >= 0.0, "value loss: value_clip must not be negative, got ", value_clip);
  at::Tensor error_n = (value_n - return_n).square();
  if (value_clip > 0.0) {
    const at::Tensor clipped_n =
        at::clamp(value_n, old_value_n - value_clip, old_value_n + value_clip);
    const at::Tensor clipped_error_n = (clipped_n - return_n).square();
    figures.mean("clipped", clipped_error_n > error_n);
    error_n = at::maximum(error_n, clipped_error_n);
  }
  const at::Tensor loss = 0.5 * token_weight * error_n.sum();
  figures.sum("loss", loss);
  figures.count(value_n);
  return loss;
}

Moments Moments::of(const at::Tensor& x_n) {
  if (x_n.numel() == 0) {
    return {};
  }
  const at::NoGradGuard no_grad;
  const at::Tensor x = x_n.to(at::kDouble);
  const double mean = x.mean().item<double>();
  return {static_cast<double>(x.numel()), mean, (x - mean).square().sum().item<double>()};
}

Moments& Moments::operator+=(const Moments& other) {
  const double both = count + other.count;
  if (other.count == 0.0) {
    return *this;
  }
  const double apart = other.mean - mean;
  mean += apart * (other.count / both);
  squares += other.squares + apart * apart * (count * other.count / both);
  count = both;
  return *this;
}

ValueStatistics ValueStatistics::of(const at::Tensor& value_n, const at::Tensor& return_n) {
  TORCH_CHECK(value_n.sizes() == return_n.sizes(), value_n.sizes(), " values, ", return_n.sizes(),
              " returns");
  ValueStatistics result;
  if (value_n.numel() == 0) {
    return result;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor value = value_n.to(at::kDouble), returned = return_n.to(at::kDouble);
  result.value = Moments::of(value);
  result.return_ = Moments::of(returned);
  result.residual = Moments::of(returned - value);
  result.value_min = value.min().item<double>();
  result.value_max = value.max().item<double>();
  return result;
}

ValueStatistics& ValueStatistics::operator+=(const ValueStatistics& other) {
  value += other.value;
  return_ += other.return_;
  residual += other.residual;
  value_min = std::min(value_min, other.value_min);
  value_max = std::max(value_max, other.value_max);
  return *this;
}

double ValueStatistics::explained_variance() const {
  return return_.squares > 0.0 ? 1.0 - residual.squares / return_.squares : 0.0;
}

}  // namespace ringside::rl
