// Muon: momentum whose direction for each matrix is made orthogonal by Newton-Schulz iterations.
//
// Shapes: B = matrices of one shape, R, C = rows and columns of a matrix.
// Source: Jordan et al. 2024 (Muon); Liu et al. 2025 (Muon is Scalable for LLM Training);
// torch.optim.Muon.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/params/param_unit.h"

namespace ringside::engine {

// Factor of the orthogonal direction of a matrix of R outputs and C inputs.
enum class DirectionScale {
  kSpectral,   // sqrt(max(1, R / C)), "original" in torch
  kMatchAdamW  // 0.2 sqrt(max(R, C)), "match_rms_adamw": changes as large as AdamW's
};

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int64_t newton_schulz_steps = 5;
  DirectionScale scale = DirectionScale::kMatchAdamW;
};

// What Muon updates of the units of an optimizer.
struct MuonMatrices {
  // [units] of each unit the places of its matrices among specs(), ascending. A parameter of three
  // dims is a matrix [inputs, outputs] for each index of the first.
  std::vector<std::vector<std::size_t>> of_unit;
  // The ranks that hold the same elements of a unit whose storage does not know its holders().
  // Null: this one alone.
  std::shared_ptr<sp::Communicator> holders = nullptr;
};

// Matrices of one shape are made orthogonal together, up to so many elements, or one that is
// larger.
inline constexpr int64_t kMuonBatchElements = int64_t{1} << 24;

// The dtype in which directions travel and are made orthogonal: the compute dtype, but fp32 for
// float16, which would lose small numbers.
at::ScalarType direction_dtype(const ComputeContext& context);

// Nearly orthogonal matrices with the singular vectors of `x`: singular values between about 0.7
// and 1.2 after five steps with the published coefficients. A zero matrix stays zero.
// Shapes: [B, R, C] -> [B, R, C], in the dtype of x, which computes.
// Throws: c10::Error on another number of dims, or no step.
at::Tensor orthogonalised(const at::Tensor& x_BRC, int64_t steps);

// DirectionScale of a matrix of this size.
double direction_factor(DirectionScale scale, int64_t outputs, int64_t inputs);

// One rate for all matrices of a step.
struct MuonStep {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  at::Tensor skip;  // fp32 [] on the device of the weights: 1 changes nothing; undefined = 0
};

// The direction of a matrix needs the whole matrix. So the ranks over which a unit is spread gather
// its momentum in direction_dtype(), one unit at a time; each then makes the matrices that it has
// elements of. Ranks that hold the same elements divide these among them and
// add up their results, so that all have the same bits. Experts on other ranks are not gathered.
// Bytes: of each unit one gather of its parameters in that dtype, and an all-reduce of the same
// size over the ranks that hold the same.
// Thread safety: none.
class Muon {
 public:
  // Throws: c10::Error on a momentum outside [0, 1), fewer than 1 or more than 99 steps.
  Muon(MuonOptions options, MuonMatrices matrices);

  // Whether parameter i of unit u is updated here.
  bool updates(std::size_t u, std::size_t i) const;

  // Updates the matrices of unit u from its gradient, which is already scaled:
  //   m += (1 - momentum) (g - m);  d = nesterov ? g + momentum (m - g) : m
  //   p = (1 - lr wd) p - lr factor orthogonalised(d)
  // exp_avg: m, of the unit's flat() layout, where its weights are.
  // Collective over: the ranks over which the unit is spread; those that hold the same elements.
  void update(std::size_t u, const ParamUnit& unit, const at::Tensor& exp_avg,
              const MuonStep& step) const;

 private:
  // One matrix of a parameter, from its element `first` on.
  struct Matrix {
    std::size_t param;
    int64_t first, rows, columns;
  };
  // Those of parameter i of which this rank has elements.
  std::vector<Matrix> matrices_of(const UnitStorage& storage, std::size_t i) const;
  // Moves the momentum of these parameters; their directions before they are orthogonal, whole: of
  // this rank's part of the unit, or of all parts of one that tensor-parallel ranks divide.
  at::Tensor gathered_directions(const ParamUnit& unit, const at::Tensor& exp_avg,
                                 const std::vector<std::size_t>& params,
                                 const at::Tensor& skip) const;
  // Of this rank's share, orthogonal, at the places of their elements; zeros elsewhere.
  // Shapes: of flat().
  at::Tensor own_directions(const UnitStorage& storage, const at::Tensor& gathered,
                            std::vector<Matrix> share) const;

  MuonOptions options_;
  MuonMatrices matrices_;
};

}  // namespace ringside::engine
