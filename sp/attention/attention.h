// Attention over a sequence-parallel group: the one entry. Any split of documents, heads and ranks that the plan describes;
// differentiable with exact adjoints.
// Shapes: s = tokens of this rank in the layout's local order, H = query heads, K = KV heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sp/comm/communicator.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// What an attention call runs on. The communicators must live until the backward has run.
struct AttentionContext {
  std::shared_ptr<const AttentionPlan> plan;
  std::shared_ptr<Communicator> ulysses;
  std::shared_ptr<Communicator> ring;
};

// Causal attention within each document of the plan's layout. q_sHD, k_sKD, v_sKD: one dtype (fp64, fp32 or bf16),
// row order of the layout. Returns out_sHD in that dtype; partial results are kept in fp32 (fp64 for doubles).
// Collective over the Ulysses and the ring group, forward and backward. Throws c10::Error, before any collective, when
// the shapes do not fit the plan or the groups do not have its sizes.
at::Tensor attention(const at::Tensor& q_sHD, const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                     const AttentionContext& context, double softmax_scale);

}  // namespace ringside::sp
