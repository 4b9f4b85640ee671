// Linear layer: projections that share an input, as one product. The one place that knows adapters
// and packed weights.
//
// Shapes: s = tokens, I = inputs, O = outputs of all projections.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layers/layer_pass.h"
#include "engine/layers/param_table.h"

namespace ringside::engine {

enum class Bias { kNone, kAll };

// Holds no tensor, but the slots of its weight and bias.
// Thread safety: immutable.
class Linear {
 public:
  // Adds "<module>.weight" of each projection and, with biases, "<module>.bias" to the table.
  Linear(ParamTable& table, std::vector<Projection> projections, int64_t inputs,
         Bias bias = Bias::kNone);

  // x weight^T + bias, and what the weight's adapters add. Differentiable.
  // Shapes: x [s, I] -> [s, O].
  // Throws: as apply_linear().
  at::Tensor operator()(const at::Tensor& x_sI, const LayerPass& pass) const;

  // Of all projections, one below the other: [O, I].
  const Weight& weight(const LayerPass& pass) const { return pass.weights[weight_]; }
  // Undefined without.
  Weight bias(const LayerPass& pass) const;

  // Whether the weight's own values are all that acts: no adapters, not packed.
  bool is_plain(const LayerPass& pass) const;

  // Weight and bias of each projection.
  // Throws: c10::Error unless the weight is plain.
  struct Part {
    Weight weight;
    Weight bias;
  };
  // One part a projection, in order.
  std::vector<Part> parts(const LayerPass& pass) const;

  // The matrix as it acts, adapters included, outside autograd: [O, I].
  at::Tensor effective_matrix(const LayerPass& pass, at::ScalarType dtype) const;

  // Adds what the gradients of weight, bias and adapters arrive at.
  void append_leaves(const LayerPass& pass, std::vector<at::Tensor>& leaves) const;

 private:
  Slot weight_;
  std::optional<Slot> bias_;
  std::vector<int64_t> outputs_;  // of each projection
};

}  // namespace ringside::engine
