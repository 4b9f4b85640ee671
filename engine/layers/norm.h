// RMSNorm of a layer, by its slot.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "engine/layers/layer_pass.h"
#include "engine/layers/param_table.h"
#include "engine/ops/rms_norm.h"

namespace ringside::engine {

// The functions are those of engine/ops/rms_norm.h with this norm's weight.
// Thread safety: immutable.
class Norm {
 public:
  // Adds the parameter `name` of `size` elements to the table.
  Norm(ParamTable& table, const std::string& name, int64_t size, const NormOptions& options)
      : slot_(table.add(name, {size})), options_(options) {}

  // Shapes: [size].
  const Weight& weight(const LayerPass& pass) const { return pass.weights[slot_]; }
  const NormOptions& options() const { return options_; }

  // rms_norm(), residual_rms_norm() and add_rms_norm(); shapes and errors are theirs.
  at::Tensor operator()(const at::Tensor& x, const LayerPass& pass) const {
    return rms_norm(x, weight(pass), options_);
  }
  ResidualNorm of_residual(const at::Tensor& x, const LayerPass& pass) const {
    return residual_rms_norm(x, weight(pass), options_);
  }
  ResidualNorm of_sum(const at::Tensor& x, const at::Tensor& branch, const LayerPass& pass) const {
    return add_rms_norm(x, branch, weight(pass), options_);
  }

 private:
  Slot slot_;
  NormOptions options_;
};

}  // namespace ringside::engine
