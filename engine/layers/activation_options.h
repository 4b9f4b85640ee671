// Choices that trade time for the memory of activations. None changes a result beyond rounding.
#pragma once

#include <cstdint>

namespace ringside::engine {

// What the backward computes again instead of keeping it.
//   kFull: each layer. Only its input is kept. Its attention runs and is sent again.
//   kSelective: each layer without its attention. Beside the input, the attention's output and
//   log-sum-exp are kept. With more than one Ulysses rank the exchanged q, k and v and the output
//   before and after the exchange are kept too, because they could only be had by sending.
enum class Recompute { kNone, kFull, kSelective };

struct ActivationOptions {
  Recompute recompute = Recompute::kNone;
  // What recomputation keeps waits in host memory. On a CPU device it stays where it is.
  bool offload = false;
  // Rows over which an MLP is computed at a time, in both passes; 0 = all at once. Experts are not
  // tiled.
  int64_t mlp_tile_tokens = 0;
  // Most bytes of one chunk of logits with all that is computed from it.
  int64_t logit_chunk_bytes = int64_t{512} << 20;

  bool operator==(const ActivationOptions&) const = default;
};

}  // namespace ringside::engine
