// What the memory of a training rank is predicted from.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/layers/activation_options.h"
#include "engine/layers/cost.h"
#include "engine/models/adapters.h"
#include "engine/models/stage.h"
#include "engine/params/quantised_matrix.h"
#include "engine/vision/vision_tower.h"

namespace ringside::engine {

// Where a rank's part of a model lives.
struct StateShape {
  int64_t shard_ranks = 1;   // that hold one copy of the model together; 1: this rank has all of it
  int64_t expert_ranks = 1;  // that hold all experts together, each with its own
  int64_t expert_shard_ranks = 1;  // that share one rank's experts; shard_ranks with 1 above
  int64_t tensor_ranks = 1;        // that divide a layer's matrices
  int64_t zero_stage = 3;          // as Sharding::stage
  bool moments_on_host = false;
  bool masters_on_host = false;     // gradients leave for the host too
  bool parameters_on_host = false;  // between uses
  bool muon = false;                // updates the matrices of layers, which have one moment
};

// Adapters that are trained beside frozen weights.
struct AdapterShape {
  AdapterOptions options;
  std::optional<QuantisedFormat> base;  // of the projections; empty: frozen in the compute dtype
};

// The largest micro-batch of a rank, and how the rank computes it. Of MixerShape, estimate_memory()
// itself takes from the rest what lies there too: experts, tiles, bytes of numbers, device.
struct PassShape : MixerShape {
  int64_t entries = 0;      // loss entries of this rank
  int64_t logit_rows = 0;   // rows whose logits exist at once
  int64_t logit_bytes = 4;  // for one logit, with what is computed from it
  ActivationOptions activations;
  bool accumulates = false;  // more than one micro-batch an optimizer step
  bool trains = true;        // false: forward passes only
  StateShape state;
  std::optional<AdapterShape> adapters;  // empty: all weights are trained
  std::optional<Stage> stage;            // of a pipeline; empty: the whole model
  // Of a model with a vision tower, which a frozen model does not train.
  VisionTraining vision = VisionTraining::kNothing;
  int64_t patches = 0;     // that this rank encodes
  int64_t image_rows = 0;  // of images among this rank's tokens, with those of its tensor ranks
  int64_t kept_image_rows = 0;  // in KeptRows, where the tower is constant and whole
};

}  // namespace ringside::engine
