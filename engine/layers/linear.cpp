#include "engine/layers/linear.h"

#include <ATen/ATen.h>

#include <utility>

#include "engine/nn/linear.h"
#include "engine/nn/tensor_rows.h"
#include "engine/params/quantised_matrix.h"

namespace ringside::engine {
namespace {

std::vector<Weight> split_rows(const Weight& weight, const std::vector<int64_t>& sizes) {
  if (!weight.defined()) {
    return std::vector<Weight>(sizes.size());
  }
  const auto values = weight.value.split_with_sizes(sizes);
  if (weight.value.is_same(weight.leaf)) {
    return {values.begin(), values.end()};
  }
  const auto leaves = weight.leaf.split_with_sizes(sizes);
  std::vector<Weight> parts;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    parts.emplace_back(values[i], leaves[i]);
  }
  return parts;
}

bool sums_ranks(const std::vector<Projection>& projections) {
  const TensorCut& cut = projections.front().cut;
  return cut.is_cut() && cut.along == CutAlong::kColumns;
}

// Biases of partial sums are added to the sum: they are whole.
TensorCut cut_of_bias(const TensorCut& cut) {
  return cut.along == CutAlong::kRows ? cut : TensorCut{};
}

// This rank's outputs of a projection.
int64_t own_outputs(const ParamTable& table, const Projection& projection) {
  const TensorCut cut = cut_of_bias(projection.cut);
  return cut.is_cut() ? sp::total_size(cut.of_part[table.place().rank]) : projection.outputs;
}

std::vector<int64_t> outputs_of(const ParamTable& table,
                                const std::vector<Projection>& projections) {
  std::vector<int64_t> outputs;
  for (const Projection& projection : projections) {
    outputs.push_back(own_outputs(table, projection));
  }
  return outputs;
}

Slot add_bias(ParamTable& table, const std::vector<Projection>& projections) {
  WeightSpec bias;
  int64_t outputs = 0;
  for (const Projection& projection : projections) {
    bias.params.push_back({projection.module + ".bias",
                           {projection.outputs},
                           /*in_fp32=*/false,
                           cut_of_bias(projection.cut)});
    outputs += own_outputs(table, projection);
  }
  bias.shape = {outputs};
  return table.add(std::move(bias));
}

}  // namespace

Linear::Linear(ParamTable& table, std::vector<Projection> projections, int64_t inputs, Bias bias)
    : weight_(table.add_linear(projections, inputs)),
      outputs_(outputs_of(table, projections)),
      sums_ranks_(sums_ranks(projections)) {
  if (bias == Bias::kAll) {
    bias_ = add_bias(table, projections);
  }
}

at::Tensor Linear::operator()(const at::Tensor& x_sI, const LayerPass& pass) const {
  return apply_linear(x_sI, weight(pass), sums_ranks_ ? Weight() : bias(pass));
}

at::Tensor Linear::some(const at::Tensor& x_sI, const sp::Range& outputs,
                        const LayerPass& pass) const {
  if (!is_plain(pass)) {
    return (*this)(x_sI, pass).narrow(1, outputs.begin, outputs.size());
  }
  const std::vector<int64_t> sizes{outputs.begin, outputs.size(), outputs_.front() - outputs.end};
  return apply_linear(x_sI, split_rows(weight(pass), sizes)[1], split_rows(bias(pass), sizes)[1]);
}

at::Tensor Linear::summed(const at::Tensor& partial_sO, const LayerPass& pass) const {
  return sums_ranks_ ? add_bias(scatter_rows(partial_sO, pass.rows), bias(pass)) : partial_sO;
}

Weight Linear::bias(const LayerPass& pass) const { return bias_ ? pass.weights[*bias_] : Weight(); }

bool Linear::is_plain(const LayerPass& pass) const {
  return weight(pass).low_rank == nullptr && weight(pass).packed == nullptr;
}

std::vector<Linear::Part> Linear::parts(const LayerPass& pass) const {
  TORCH_CHECK(is_plain(pass),
              "overlapped attention projects plain weights, without adapters and not quantised");
  const std::vector<Weight> weights = split_rows(weight(pass), outputs_);
  const std::vector<Weight> biases = split_rows(bias(pass), outputs_);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    parts.push_back({weights[i], biases[i]});
  }
  return parts;
}

at::Tensor Linear::effective_matrix(const LayerPass& pass, at::ScalarType dtype) const {
  const Weight& w = weight(pass);
  const at::Tensor plain = w.packed ? w.packed->unpack(dtype) : w.value;
  if (w.low_rank == nullptr) {
    return plain;
  }
  const LowRank& low_rank = *w.low_rank;
  const at::Tensor matrix = plain.clone();
  const std::vector<at::Tensor> a =
      low_rank.a.chunk(static_cast<int64_t>(low_rank.parts.size()), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto& [row, b, leaf] = low_rank.parts[i];
    matrix.narrow(0, row, b.size(0)).addmm_(b, a[i], 1.0, low_rank.scale);
  }
  return matrix;
}

void Linear::append_leaves(const LayerPass& pass, std::vector<at::Tensor>& leaves) const {
  const Weight& w = weight(pass);
  leaves.push_back(bias(pass).leaf);
  leaves.push_back(w.leaf);
  if (w.low_rank) {
    leaves.push_back(w.low_rank->a_leaf);
    for (const LowRank::Part& part : w.low_rank->parts) {
      leaves.push_back(part.b_leaf);
    }
  }
}

}  // namespace ringside::engine
