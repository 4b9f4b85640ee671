// Row counts of replayed routes, known before the forward: in it the ranks then exchange no counts
// and the host waits for none.
//
// Shapes: s = tokens, L = layers with experts, K = experts a token, X = experts.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/models/decoder.h"
#include "engine/nn/expert_exchange.h"
#include "engine/runner/device_batches.h"

namespace ringside::engine {

// Thread safety: none.
class ReplayedRows {
 public:
  // Of all inputs at once, if all of them have routes; of this tensor rank's rows. stream: of
  // make_side_stream(device). Collective over: the ranks of the experts, if there are routes.
  // Blocks: with several ranks until the device has exchanged the counts; one host sync.
  // Throws: c10::Error on an id outside the experts.
  ReplayedRows(std::span<const ModelInput> inputs, const Decoder& decoder,
               const std::optional<c10::Stream>& stream);

  // Of each layer with experts; null: the forward counts them. Valid while this object lives.
  const std::vector<RowCounts>* of_input(std::size_t input) const {
    return counts_.empty() ? nullptr : &counts_[input];
  }

 private:
  std::vector<std::vector<RowCounts>> counts_;  // of each input and layer
};

}  // namespace ringside::engine
