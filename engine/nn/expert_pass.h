// What layers with experts are told for a pass, and what they note of it.
//
// Shapes: s = tokens, L = layers with experts, K = experts a token, X = experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/nn/expert_exchange.h"
#include "engine/nn/load_balance.h"
#include "sp/mesh/communicator.h"
#include "sp/mesh/kept_results.h"

namespace ringside::engine {

// The dtype of recorded ids: uint8 for up to 256 experts, else int16.
at::ScalarType route_dtype(int64_t experts);

// Rows for each expert of each layer; empty for a layer without experts.
using ExpertLoad = std::vector<std::vector<double>>;

// Of one forward, for all its layers. Undefined tensors, null pointers and false: the routers
// choose, and nothing is noted. Outlives the backward, as does what it points to.
// Thread safety: none.
struct ExpertNotes {
  at::Tensor replayed_sLK = {};  // ids of any integer dtype, in layer order, distinct in a row
  bool records = false;
  ExpertLoad* load = nullptr;            // gets the rows of this rank's tokens for each expert
  const LoadBalance* balance = nullptr;  // of the routers
  // Row counts of the replayed routes, of each layer with experts: then the ranks exchange no
  // counts and the host does not wait for them.
  const std::vector<RowCounts>* counts = nullptr;

  // Filled by the forward, layer by layer.
  std::vector<at::Tensor> recorded_sK = {};  // what was used, in route_dtype(); with `records`
  // Replayed ids that are not among the router's own choice, fp64 scalar; with replayed_sLK.
  at::Tensor changed = {};

  // [s, L, K] of what was recorded.
  // Throws: c10::Error when nothing was.
  at::Tensor recorded_sLK() const;
};

// Of one layer.
struct ExpertPass {
  // Rank p has even_part(X, ranks, p) of the experts; null: this rank has all of them.
  std::shared_ptr<sp::Communicator> ranks = nullptr;
  // Of a recomputed layer; null: it runs once. Both runs use the routes and the row counts of the
  // first: attention need not give the same bits twice, and other experts in the second run would
  // be another function. Notes are made in the first run only.
  std::shared_ptr<sp::KeptResults> kept = nullptr;
  ExpertNotes* notes = nullptr;  // null: none
  int64_t layer = 0;             // of the model
  int64_t index = 0;             // among its layers with experts
  at::Tensor correction_X = {};  // of the router's choice; undefined: none

  // Null: none.
  const LoadBalance* balance() const { return notes != nullptr ? notes->balance : nullptr; }
  const RowCounts* counts() const {
    return notes != nullptr && notes->counts != nullptr ? &notes->counts->at(index) : nullptr;
  }

  // The experts of each token, int64 [s, K]. own: the router's choice, [s, K] int64; it is not
  // called in the second run.
  // Throws: c10::Error when the replayed routes have another shape.
  at::Tensor choose(int64_t experts, const std::function<at::Tensor()>& own) const;

  // Notes the rows of this rank's tokens for each expert, [X].
  void add_load(const std::vector<int64_t>& rows_X) const;
};

}  // namespace ringside::engine
