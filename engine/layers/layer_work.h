// Work of a layer, from its shapes.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/layers/decoder_layer.h"

namespace ringside::engine {

// FLOPs of a forward.
struct LayerWork {
  double token = 0.0;  // of a token: two for each weight that it uses
  std::optional<int64_t>
      window;         // of its attention, as BlockSpec::window; none: it does not attend
  double pair = 0.0;  // of a query-key pair of attention, in all heads
};

// Of experts, those that a token is sent to. Thread safety: pure.
LayerWork work_of(const DecoderLayer& layer, const ModelConfig& config);

}  // namespace ringside::engine
