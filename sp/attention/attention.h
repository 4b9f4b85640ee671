// Attention over a sequence-parallel group: the one entry. Any split of documents, heads and ranks
// that the plan describes; differentiable with exact adjoints. Shapes: s/S = tokens of this rank/of
// its ring share in the layout's order, H/h = all/this rank's query heads, K/k the same for KV
// heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sp/attention/ring_step_kernels.h"
#include "sp/mesh/communicator.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// What an attention call runs on. The communicators must live until the backward has run.
struct AttentionContext {
  std::shared_ptr<const AttentionPlan> plan;
  std::shared_ptr<Communicator> ulysses;
  std::shared_ptr<Communicator> ring;
  std::shared_ptr<const RingStepKernels> kernels = cpu_kernels();
};

// The window is part of the plan. What no method here can honour is refused, so that no option is
// silently ignored.
struct AttentionOptions {
  double softmax_scale = 1.0;
  at::Tensor sinks_H;          // attention sinks: a logit per query head that joins every softmax;
                               // undefined = none
  double logit_softcap = 0.0;  // refused unless 0: the flash kernels have no soft-cap
  double dropout = 0.0;        // refused unless 0: it cannot be the same under every split
};

// Causal attention within each document of the plan's layout. q_sHD, k_sKD, v_sKD: one dtype (fp64,
// fp32 or bf16; on CUDA bf16 or fp16), row order of the layout; sinks_H in the accumulation dtype.
// Returns out_sHD in q's dtype; partial results are kept in fp32 (fp64 for doubles). The gradient
// of sinks_H is this rank's part: summed over the group it is the whole. Collective over the
// Ulysses and the ring group, forward and backward. Throws c10::Error, before any collective, when
// shapes or dtypes do not fit the plan, the groups do not have its sizes, or an option is refused.
at::Tensor attention(const at::Tensor& q_sHD, const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                     const AttentionContext& context, const AttentionOptions& options);

// The same between the two all-to-alls of Ulysses, for a caller that exchanges heads itself
// (asynchronously, say): q_ShD, k_SkD, v_SkD are this rank's heads of the whole ring share. Returns
// out_ShD. Collective over the ring group alone.
at::Tensor share_attention(const at::Tensor& q_ShD, const at::Tensor& k_SkD,
                           const at::Tensor& v_SkD, const AttentionContext& context,
                           const AttentionOptions& options);

}  // namespace ringside::sp
