// Gated delta net between its projections, for the head groups of one rank.
//
// Shapes: S = rows, g = head groups, v = value heads of a group, h = g v; other letters as in
// recurrent_backend.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/nn/delta_rule.h"
#include "engine/nn/recurrent_backend.h"

namespace ringside::engine {

// The channels that the convolution reads, as one row of channels: [S, g c].
// Throws: c10::Error when the groups have another number of channels.
at::Tensor conv_channels(const sp::StateShape& shape, const at::Tensor& channels_SgC);

// The rows of the delta rule: q and k at unit length, q scaled by key_dim^-0.5, decays and write
// strengths from the last channels. Norms and decays are computed in fp32, in fp64 for doubles.
// Differentiable.
// Shapes: channels_SgC; convolved_Sc: the convolution of conv_channels(), [S, g c]; log_decay_gv,
// decay_bias_gv; returns DeltaRows with g key heads and h value heads.
// Source: transformers, Qwen3NextGatedDeltaNet.
DeltaRows delta_rows(const sp::StateShape& shape, const at::Tensor& channels_SgC,
                     const at::Tensor& convolved_Sc, const at::Tensor& log_decay_gv,
                     const at::Tensor& decay_bias_gv);

}  // namespace ringside::engine
