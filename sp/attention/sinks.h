// Attention sinks: a learned logit per query head that joins every softmax without a value. Applied
// once, to the merged result, so ring steps do not handle them.
//
// Shapes: S = rows, h = this rank's query heads, D = head dim.
// Source: Xiao et al. 2023, StreamingLLM; gpt-oss.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/attention/lse_merge.h"

namespace ringside::sp {

// The result over keys and sink: lse' = log(exp(lse) + exp(sink)), out' = out * exp(lse - lse').
// Shapes: result: out_ShD, lse_Sh; sinks_h in its dtype; returns new tensors like result.
PartialAttention apply_sinks(const PartialAttention& result, const at::Tensor& sinks_h);

// d sink_h = - sum over rows of exp(sink - lse') * (dout . out'), with out' and lse' as
// apply_sinks() returned them.
// Shapes: applied: out_ShD, lse_Sh; dout_ShD in any dtype; returns [h] in the LSE's dtype.
at::Tensor sinks_gradient(const at::Tensor& sinks_h, const PartialAttention& applied,
                          const at::Tensor& dout_ShD);

}  // namespace ringside::sp
