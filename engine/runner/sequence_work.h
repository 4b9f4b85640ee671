// Work of sequence parallelism in a pass, counted from the plans of its micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "engine/models/headed_model.h"
#include "engine/runner/device_batches.h"

namespace ringside::engine {

// Of one training pass, on this rank. Over ranks, sums are added and maxima are maximised.
struct SequenceWork {
  double raw_tokens = 0.0;          // of the documents
  double unique_tokens = 0.0;       // computed, after shared prefixes
  double raw_pairs = 0.0;           // query-key pairs of the documents, in all layers
  double unique_pairs = 0.0;        // computed
  double predicted_bytes = 0.0;     // for attention and between tensor ranks, by plans and shapes
  double sent_bytes = 0.0;          // the same, as sent
  double balance_tokens_max = 1.0;  // fullest ring rank / mean, in the worst micro-batch
  double balance_pairs_max = 1.0;
  ExpertLoad expert_rows;  // of this rank's tokens, those of all its tensor ranks
  // Replayed routes that were not the router's own choice, fp64 scalar on the device; undefined
  // without replayed routes.
  at::Tensor changed_routes = {};

  // Adds a micro-batch in the layers of a stage. Its tokens count in the stage that scores.
  void add(const sp::MicroBatch& batch, const Decoder& stage);
};

// Bytes that this rank sends for the token mixers of its stages, and to its tensor ranks, in
// forward and backward passes of the inputs.
double predicted_bytes(const HeadedModel& model, std::span<const ModelInput> inputs);

}  // namespace ringside::engine
