// Routers of experts: which experts each token uses, and with what weight.
//
// Shapes: s = tokens, X = experts, K = experts a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/nn/expert_pass.h"

namespace ringside::engine {

// Which experts each token uses, and with what weight.
struct Routes {
  at::Tensor expert_sK;  // int64, distinct in a row
  at::Tensor weight_sK;  // in the compute dtype or fp32; differentiable towards the logits
};

// Every router scores the experts, selects K of them and weighs these by the scores. The selection
// alone may be replayed: weights always follow the current logits, so the router learns.

// Softmax over all experts, in fp32, or in fp64 for doubles unless in_fp32; then the K largest, or
// those that `choice` replays, which normalise divides by their sum.
// Shapes: logits [s, X].
// Throws: c10::Error unless 0 < K <= X, and as ExpertPass::choose().
// Source: Qwen3-MoE, as in transformers 5.23 (Qwen3MoeTopKRouter).
Routes route_by_softmax(const at::Tensor& logits_sX, int64_t per_token, bool normalise,
                        bool in_fp32 = false, const ExpertPass& choice = {});

// The K largest logits, or those that `choice` replays, and the softmax over them.
// Shapes, throws: as route_by_softmax().
// Source: GPT-OSS, as in transformers 5.23 (GptOssTopKRouter).
Routes route_by_largest(const at::Tensor& logits_sX, int64_t per_token,
                        const ExpertPass& choice = {});

// How a router with sigmoid scores chooses.
struct GroupedChoice {
  int64_t per_token = 0;
  int64_t groups = 1;       // of equal size, adjacent experts
  int64_t kept_groups = 1;  // the others are out of the choice
};

// The K experts of each token with the largest score + correction, out of the kept groups: those
// with the largest sum of their two best. Outside autograd. choice.groups is at least 1.
// Shapes: scores [s, X], correction [X] in their dtype; returns int64 [s, K].
// Throws: c10::Error unless the groups are of equal size, the kept ones hold K experts, and groups
// of which there are several have two experts each.
// Source: DeepSeek-V3, as in transformers 5.23 (DeepseekV3MoE).
at::Tensor choose_in_groups(const at::Tensor& scores_sX, const at::Tensor& correction_X,
                            const GroupedChoice& choice);

// The scores of a token's experts, which normalise divides by their sum + 1e-20, times `factor`.
// Differentiable in the scores, in their dtype.
// Shapes: scores [s, X], experts int64 [s, K]; returns [s, K].
// Source: as choose_in_groups().
at::Tensor weigh_scores(const at::Tensor& scores_sX, const at::Tensor& expert_sK, bool normalise,
                        double factor);

}  // namespace ringside::engine
