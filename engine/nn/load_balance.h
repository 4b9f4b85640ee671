// Load-balancing loss of the routers over one micro-batch.
//
// Over T rows, the tokens of all documents on all ranks once for each layer with experts, with C_x
// routes to expert x and P_x its mean probability: X sum_x (C_x / T) P_x. It is K when every expert
// is used alike. The counts are constants; the gradient is that of the probabilities. These are the
// softmax of a router's logits, or sigmoid scores divided by their sum. A token that several
// documents share counts for each of them, so the loss does not depend on what is shared.
//
// Source: Fedus et al. 2021 (Switch Transformer), equations 4 to 6; transformers 5.23
// (load_balancing_loss_func), which also takes all layers together.
//
// Shapes: s = rows of this rank, L = layers with experts, X = experts, K = experts a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "sp/mesh/communicator.h"
#include "sp/mesh/kept_results.h"

namespace ringside::engine {

// What a router's scores are before they are probabilities.
enum class ScoreKind { kLogits, kSigmoids };

// Use: watch() and count() in every layer with experts, finish(), backward. One object a
// micro-batch; copies share what they count.
// Thread safety: none.
class LoadBalance {
 public:
  // copies_s: documents that have each token, int64 on the device.
  LoadBalance(int64_t layers, int64_t experts, const at::Tensor& copies_s);

  // The scores themselves. Their gradient gets that of the loss, in the backward. layer: below L.
  // kept: of a recomputed layer, which is counted in its first run; null: the layer runs once.
  // count() too. Shapes: [s, X]. s may be 0.
  at::Tensor watch(const at::Tensor& scores_sX, int64_t layer, ScoreKind kind,
                   sp::KeptResults* kept) const;
  // Counts the experts that the layer's tokens use, distinct in a row: int64 [s, K].
  void count(const at::Tensor& expert_sK, int64_t layer, sp::KeptResults* kept) const;

  // Adds the other ranks' rows, for ranks that finish() does not sum over. Call it before finish().
  // Collective over: the ranks.
  void add_rows_of(sp::Communicator& ranks) const;
  // The loss, fp64 scalar on the device, the same on every rank. weight: its factor in what is
  // minimised, a scalar on the device. Call it once, before the backward.
  // Collective over: the ranks.
  at::Tensor finish(sp::Communicator& ranks, const at::Tensor& weight) const;
  // Routes to each expert, of all ranks after finish(): fp64 [L, X] on the device, whole numbers.
  at::Tensor routes_LX() const { return state_->sums_2LX.select(0, 0); }

  // What backward passes hold.
  struct State {
    at::Tensor copies_s1;   // fp64
    at::Tensor sums_2LX;    // fp64: routes, and sums of probabilities
    at::Tensor gradient_X;  // fp64, of each probability; finish() defines it
    int64_t per_token = 1;
  };

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ringside::engine
