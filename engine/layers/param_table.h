// Table of a layer's weights: the parameters that each is made of, and its slot in a pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/params/param_unit.h"

namespace ringside::engine {

// Place of a weight in its layer's table, and in LayerPass::weights.
using Slot = std::size_t;

// Where the parameters of a weight lie.
enum class WeightPlace {
  kLayer,    // in the layer's unit
  kExperts,  // in a unit with one expert after another, each with its share of every such weight
  kStack,    // in a unit of its own: one parameter, whose first dimension is the experts
};

// One weight of a layer: this rank's shape, and the parameters that it is made of. They lie side by
// side in the unit, in this order. Names are those of Hugging Face behind the layer's prefix; in
// kExperts, behind that of one expert. Parameters have their whole shapes and say how they are cut;
// those of one weight are all cut or all whole. Shapes in kExperts and kStack are those of one
// expert.
struct WeightSpec {
  std::vector<int64_t> shape;
  std::vector<ParamSpec> params;
  WeightPlace place = WeightPlace::kLayer;

  // Whether tensor-parallel ranks have parts of it.
  bool is_cut() const { return params.front().cut.is_cut(); }
};

// One of the projections of a linear layer, which share its input.
struct Projection {
  std::string module;  // "self_attn.q_proj"
  int64_t outputs = 0;
  TensorCut cut = {};  // of its weight
};

// A linear layer in the table. Sizes are those of the whole layer, on every rank.
struct LinearSpec {
  Slot weight = 0;
  int64_t inputs = 0;
  std::vector<Projection> projections;  // in the order of the weight's rows
};

// A projection of a layer's experts in the table: of each expert a matrix of the weight, whole on
// every tensor rank.
struct ExpertsLinear {
  Slot weight = 0;
  std::string module;  // "experts.gate_up_proj", as the parameter of all experts in transformers
  int64_t inputs = 0;
  int64_t outputs = 0;
  bool input_first = false;  // whether the weight of an expert is [inputs, outputs]
};

// Mixers, norms and linear layers add their weights when they are made. The order of adding is that
// of the parameters in the layer's unit.
// Thread safety: const functions from any thread.
class ParamTable {
 public:
  // place: of this rank, for which the mixers enter their shapes. A place of one rank drops cuts.
  explicit ParamTable(const TensorPlace& place = {}) : place_(place) {}

  const TensorPlace& place() const { return place_; }

  // Returns the slot of the weight.
  // Throws: std::invalid_argument when some of its parameters are cut and others whole.
  Slot add(WeightSpec weight);
  // A weight that is one parameter, of which this rank has the piece that `cut` says.
  // Throws: as piece_shape().
  Slot add(const std::string& name, const std::vector<int64_t>& shape,
           WeightPlace place = WeightPlace::kLayer, const TensorCut& cut = {});
  // The weight of a linear layer, whose parameters are "<module>.weight".
  // Throws: std::invalid_argument unless all projections are whole or cut in the same direction.
  Slot add_linear(std::vector<Projection> projections, int64_t inputs);

  // Enters the projections that weights of experts are.
  void add_experts_linears(std::vector<ExpertsLinear> linears) {
    experts_linears_ = std::move(linears);
  }

  const std::vector<WeightSpec>& weights() const { return weights_; }
  const std::vector<LinearSpec>& linears() const { return linears_; }
  // Empty for a layer without experts.
  const std::vector<ExpertsLinear>& experts_linears() const { return experts_linears_; }

  // The linear layer with this weight; nullptr: the weight is no linear layer's.
  const LinearSpec* linear_of(Slot weight) const;

  // The weight that begins with the parameter of this name.
  // Throws: std::out_of_range when there is none.
  Slot slot(const std::string& first_parameter) const;

 private:
  TensorPlace place_;
  std::vector<WeightSpec> weights_;
  std::vector<LinearSpec> linears_;
  std::vector<ExpertsLinear> experts_linears_;
};

}  // namespace ringside::engine
