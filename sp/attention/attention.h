// Attention over a sequence-parallel group: the public entry. Supports any split of documents,
// heads and ranks that a plan describes. Differentiable, with exact adjoints.
//
// Shapes: s/S = tokens of this rank/of its ring share in the layout's order, H/h = all/this rank's
// query heads, K/k the same for KV heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sp/attention/ring_step_kernels.h"
#include "sp/mesh/communicator.h"
#include "sp/mesh/kept_results.h"

namespace ringside::sp {

// What the attention calls of a micro-batch share. Make one for a micro-batch and pass it to every
// layer. The communicators must live until the backward has run.
struct AttentionContext {
  std::shared_ptr<const PreparedPlan> prepared;  // RingStepKernels::prepare()
  std::shared_ptr<Communicator> ulysses;
  std::shared_ptr<Communicator> ring;

  const AttentionPlan& plan() const { return prepared->plan(); }
};

// Options of an attention call; the window is part of the plan. Unsupported options are refused,
// not ignored.
struct AttentionOptions {
  double softmax_scale = 1.0;
  // Attention sinks: a logit per query head that joins every softmax; undefined = none.
  at::Tensor sinks_H;
  double logit_softcap = 0.0;  // refused unless 0: the flash kernels have no soft-cap
  double dropout = 0.0;        // refused unless 0: it would differ between splits
  // For a call that runs again in the backward: output and log-sum-exp are kept, and with more than
  // one Ulysses rank all exchanged tensors, so that the second call is local. q, k and v must be
  // the same in both calls. Null: nothing is kept.
  std::shared_ptr<KeptResults> kept = nullptr;
};

// Causal attention within each document of the plan's layout. Partial results are kept in fp32
// (fp64 for doubles). The gradient of sinks_H is this rank's part; its sum over the group is the
// whole.
// Shapes: q_sHD, k_sKD, v_sKD in the layout's row order, on the device and in the dtype of the
// prepared plan; sinks_H on that device in the accumulation dtype; returns out_sHD in q's dtype.
// Collective over: the Ulysses and the ring group, forward and backward.
// Blocks: until this rank's result is there; on CUDA only the current stream waits.
// Throws: c10::Error, before any collective, when shapes, dtypes or devices do not match the
// plan, the groups do not have its sizes, or an option is refused.
at::Tensor attention(const at::Tensor& q_sHD, const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                     const AttentionContext& context, const AttentionOptions& options);

// attention() without the two Ulysses all-to-alls, for a caller that exchanges heads itself (e.g.
// asynchronously).
// Shapes: q_ShD, k_SkD, v_SkD are this rank's heads of the whole ring share; returns out_ShD.
// Collective over: the ring group, forward and backward.
// Blocks, throws: as attention().
at::Tensor share_attention(const at::Tensor& q_ShD, const at::Tensor& k_SkD,
                           const at::Tensor& v_SkD, const AttentionContext& context,
                           const AttentionOptions& options);

}  // namespace ringside::sp
