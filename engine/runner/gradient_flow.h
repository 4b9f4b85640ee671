// Where gradients flow in a backward, layer by layer: with adapters not below the first of them.
#pragma once

#include <cstdint>

#include "engine/models/adapters.h"

namespace ringside::engine {

// With adapters the embedding has no gradient, nor has the residual stream before the first
// adapter, unless recomputed layers ask for it. Thread safety: none.
class GradientFlow {
 public:
  // Of a mixer.
  struct Backwards {
    bool gathered = true;  // of what is gathered for it
    bool mixed = true;     // of attention or of what passes a state
    bool summed = true;    // of what is summed behind it
  };
  struct OfLayer {
    Backwards tokens, channels;
  };

  // adapters: null without; they outlive this. embeds: whether the stage begins at the embedding.
  GradientFlow(const Adapters* adapters, bool embeds, bool recomputes)
      : adapters_(adapters), stream_(adapters == nullptr || !embeds || recomputes) {}

  // Of the next layer of the stage, the model's layer `index`.
  OfLayer next(int64_t index);

 private:
  const Adapters* adapters_;
  bool stream_;  // whether the residual stream has a gradient
};

}  // namespace ringside::engine
