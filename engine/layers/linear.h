// Linear layer: projections that share an input, as one product. The one place that knows adapters
// and packed weights.
//
// With tensor parallelism a projection's cut says what this rank computes: some outputs, of inputs
// gathered before, or partial sums over some inputs, which are added up behind. Without a cut it
// computes whole outputs.
//
// Shapes: s = tokens, I = this rank's inputs, O = its outputs of all projections.
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
  // inputs: of the whole layer. Biases are cut as the outputs are.
  Linear(ParamTable& table, std::vector<Projection> projections, int64_t inputs,
         Bias bias = Bias::kNone);

  // x weight^T + bias, and what the weight's adapters add. Of a layer whose inputs are cut the
  // partial sums of this rank, without the bias. Differentiable.
  // Shapes: x [s, I] -> [s, O].
  // Throws: as apply_linear().
  at::Tensor operator()(const at::Tensor& x_sI, const LayerPass& pass) const;

  // Of a layer of one projection the outputs in a range alone.
  // Shapes: x [s, I] -> [s, outputs of the range].
  at::Tensor some(const at::Tensor& x_sI, const sp::Range& outputs, const LayerPass& pass) const;

  // This rank's rows of the sum of the ranks' partial sums, and the bias. The results of a layer
  // whose inputs are not cut are returned as they are.
  // Shapes: [s, O] -> [rows of this rank, O].
  // Collective over: the tensor-parallel ranks.
  at::Tensor summed(const at::Tensor& partial_sO, const LayerPass& pass) const;

  // This rank's of all projections, one below the other: [O, I].
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
  std::vector<int64_t> outputs_;  // this rank's of each projection
  bool sums_ranks_;               // whether the inputs are cut
};

}  // namespace ringside::engine
