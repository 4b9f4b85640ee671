// Rows of the residual stream between tensor-parallel ranks. Each of them keeps a run of the rows
// of a sequence-parallel rank. Before a product with a cut weight the rows are gathered; the
// partial sums behind it are added up, and each rank keeps its own rows of the sum.
//
// The gradient of what is the same on every rank is either partial, to be summed over the ranks, or
// the same on every rank. The two gathers differ in that.
//
// Shapes: s = tokens of the sequence-parallel rank, t = those of this tensor rank.
// Source: Korthikanti et al. 2022 (sequence parallelism of Megatron-LM).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/device/compute_context.h"
#include "sp/layout/range.h"
#include "sp/mesh/communicator.h"

namespace ringside::engine {

// Which rows each rank keeps, in rank order. Copies share the communicator.
struct RowParts {
  std::shared_ptr<sp::Communicator> ranks = nullptr;  // null: there is one rank, with all rows
  std::vector<int64_t> rows_of = {};                  // of each rank; may be 0

  // Whether there are several ranks.
  bool is_cut() const { return ranks != nullptr && ranks->size() > 1; }
  // This rank's rows among all. Only of a cut.
  sp::Range own() const;
};

// Parts of `rows` rows that differ by at most one. ranks: null for one rank.
RowParts even_rows(const std::shared_ptr<sp::Communicator>& ranks, int64_t rows);

// The parts of a rank with this context.
RowParts row_parts(const ComputeContext& context, int64_t rows);

// All functions return their input where there is one rank. Differentiable once, but own_rows().
// Collective over: parts.ranks, in the backward too; every rank must use the result.
// Throws: c10::Error, before anything is sent, when the number of rows is not that of the parts.

// The rows of all ranks, for a product with a cut weight: the backward sums the ranks' gradients of
// a row in rank order, in fp32 for narrower floats. Adjoint: scatter_rows().
// Shapes: own [t, ...] -> [s, ...].
at::Tensor gather_rows(const at::Tensor& own, const RowParts& parts);

// This rank's rows of the sum of the ranks' partial results, in rank order and in fp32 for narrower
// floats. Adjoint: gather_rows().
// Shapes: partial [s, ...] -> [t, ...].
at::Tensor scatter_rows(const at::Tensor& partial, const RowParts& parts);

// The rows of all ranks, for what every rank computes alike: the backward takes this rank's rows of
// the gradient, which is the same on every rank, and sends nothing.
// Shapes: own [t, ...] -> [s, ...].
at::Tensor replicate_rows(const at::Tensor& own, const RowParts& parts);

// This rank's rows of what every rank has; a view. Not collective.
// Shapes: all [s, ...] -> [t, ...].
at::Tensor own_rows(const at::Tensor& all, const RowParts& parts);

// Loss entries of a sequence-parallel rank: each is on the tensor rank that has its source row.
// Gathered in rank order they are the entries in another order.
struct EntryParts {
  RowParts ranks = {};      // entries of each rank; no cut: the order is that of the entries
  at::Tensor entry_n = {};  // int64: the entry at each place of the gathered order
  at::Tensor place_n = {};  // int64: the place of each entry in it
  // Numbers of the entries, brought to the gathered order and back. Shapes: [n] each.
  at::Tensor gathered_order(const at::Tensor& of_entries_n) const;
  at::Tensor entry_order(const at::Tensor& gathered_n) const;
};

}  // namespace ringside::engine
