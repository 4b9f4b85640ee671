// Dynamic loss scale for float16: the loss is multiplied by it, so that small gradients do not
// become zero, and the gradients are divided by it before the step.
//
// The scale is halved after a step whose gradients were not finite, and doubled after 2000 finite
// ones in a row, as torch.amp.GradScaler does. It stays on the device: a step is skipped, and the
// scale changed, without a host sync.
// Source: Micikevicius et al. 2018.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ringside::engine {

// When and by how much the scale changes.
struct LossScaleOptions {
  double initial = 65536.0;
  double growth = 2.0;
  double backoff = 0.5;
  int64_t growth_interval = 2000;  // finite steps in a row
};

// Every rank has the same scale, because the gradients' norm is the same on every rank.
// Thread safety: none.
class LossScale {
 public:
  // Throws: c10::Error unless initial > 0, growth > 1, 0 < backoff < 1 and growth_interval > 0.
  explicit LossScale(c10::Device device, const LossScaleOptions& options = {});

  // Shapes: fp32 []. update() changes it in place.
  const at::Tensor& value() const { return scale_; }

  // After an optimizer step. found_inf: 1 if it was skipped because its gradients were not finite,
  // else 0.
  // Shapes: fp32 [], on the device.
  void update(const at::Tensor& found_inf);

  // "loss_scale" fp32 [] and "loss_scale_finite_steps" int32 [], as views. Reading them saves the
  // state; copying into them restores it.
  std::vector<std::pair<std::string, at::Tensor>> named_state() const;

 private:
  LossScaleOptions options_;
  at::Tensor scale_, finite_steps_;
};

// Smallest scale that still is an explanation for gradients that are not finite. If they are not
// finite at this scale, training has diverged. From 65536 that is the 17th such step in a row.
inline constexpr double kSmallestLossScale = 1.0;

}  // namespace ringside::engine
