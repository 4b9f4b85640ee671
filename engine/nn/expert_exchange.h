// Exchange of rows between the ranks that hold a layer's experts.
//
// Shapes: R = rows of this rank, T = rows of all ranks for this rank's experts, E = hidden size, X
// = experts, x = this rank's experts, P = ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/mesh/kept_results.h"

namespace ringside::engine {

// Where the rows of one forward of a layer go, and where those that arrive come from.
// Thread safety: none.
class ExpertExchange {
 public:
  // counts_X: this rank's rows for each expert, int64, on the device. Rank p of `ranks` has
  // even_part(X, P, p) of the experts. Sends the counts, or takes them from `kept` in the second
  // run of a recomputed layer; `kept` may be null.
  // Collective over: the ranks, unless the counts are kept.
  // Blocks: until the host knows the counts.
  ExpertExchange(std::shared_ptr<sp::Communicator> ranks, const at::Tensor& counts_X,
                 sp::KeptResults* kept);

  // Rows of each of this rank's experts, from all ranks: [x].
  const std::vector<int64_t>& counts() const { return route_->counts; }
  // This rank's rows for each expert: [X].
  const std::vector<int64_t>& sent_counts() const { return route_->sent_counts; }

  // The rows for this rank's experts in order of expert, then source rank, then place there.
  // Differentiable; the backward sends the gradients the way back.
  // Shapes: rows_RE in order of their expert; returns [T, E]. R and T may be 0.
  // Collective over: the ranks, in the forward and in the backward.
  at::Tensor to_experts(const at::Tensor& rows_RE) const;

  // Adjoint of to_experts(): the results return to where their rows came from.
  // Shapes: rows_TE in the order that to_experts() returns; returns [R, E].
  // Collective over: the ranks, in the forward and in the backward.
  at::Tensor to_sources(const at::Tensor& rows_TE) const;

  // What backward passes hold.
  struct Route {
    std::shared_ptr<sp::Communicator> ranks;
    std::vector<int64_t> sent, received;  // rows to and from each rank, [P]
    std::vector<int64_t> counts, sent_counts;
    at::Tensor by_expert;  // [T] place among the rows that arrive of each row in order of experts
    at::Tensor by_source;  // inverse
  };

 private:
  std::shared_ptr<const Route> route_;
};

}  // namespace ringside::engine
