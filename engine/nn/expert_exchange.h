// Exchange of rows between the ranks that hold a layer's experts.
//
// Shapes: R = rows of this rank, T = rows of all ranks for this rank's experts, E = hidden size, X
// = experts, x = this rank's experts, P = ranks, N = layers. Rank p of the ranks has
// even_part(X, P, p) of the experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sp/mesh/communicator.h"

namespace ringside::engine {

// How many rows go where: this rank's for each expert, then those that arrive, by source rank and
// expert. Of one rank alone, which has no group: the former.
// Shapes: int64 [X + P x], or [X].
struct RowCounts {
  at::Tensor on_device;
  at::Tensor on_host;
};

// The counts of N layers at once, on the device of counts_NX: this rank's rows for each expert.
// Shapes: int64 [N, X] to [N, X + P x].
// Collective over: the ranks.
// Throws: c10::Error, before anything is sent, when there are more ranks than experts.
at::Tensor exchange_row_counts(const at::Tensor& counts_NX, sp::Communicator& ranks);

// Where the rows of one forward of a layer go, and where those that arrive come from.
// Thread safety: none.
class ExpertExchange {
 public:
  // counts: of exchange_row_counts().
  // Throws: c10::Error on counts of another size, and when there are more ranks than experts.
  ExpertExchange(std::shared_ptr<sp::Communicator> ranks, int64_t experts, const RowCounts& counts);

  // Rows of each of this rank's experts, from all ranks: [x].
  const std::vector<int64_t>& counts() const { return route_->counts; }

  // The rows for this rank's experts in order of expert, then source rank, then place there.
  // Differentiable; the backward sends the gradients the way back.
  // Shapes: rows_RE in order of their expert; returns [T, E]. R and T may be 0.
  // Collective over: the ranks, in the forward and in the backward.
  // Throws: c10::Error, before anything is sent, on another number of rows.
  at::Tensor to_experts(const at::Tensor& rows_RE) const;

  // Adjoint of to_experts(): the results return to where their rows came from.
  // Shapes: rows_TE in the order that to_experts() returns; returns [R, E].
  // Collective over: the ranks, in the forward and in the backward.
  // Throws: c10::Error, before anything is sent, on another number of rows.
  at::Tensor to_sources(const at::Tensor& rows_TE) const;

  // What backward passes hold.
  struct Route {
    std::shared_ptr<sp::Communicator> ranks;
    std::vector<int64_t> sent, received;  // rows to and from each rank, [P]
    std::vector<int64_t> counts;
    at::Tensor by_expert;  // [T] place among the rows that arrive of each row in order of experts
    at::Tensor by_source;  // inverse
  };

 private:
  std::shared_ptr<const Route> route_;
};

}  // namespace ringside::engine
