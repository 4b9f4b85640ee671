// Attention of one new token of each row over the keys and values in its pages.
//
// Shapes: B = rows, H = query heads, K = key/value heads, D = head dim, P = pages of the cache, t =
// kPageTokens, N = pages of a row (at most).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/nn/attention_backend.h"

namespace ringside::engine {

// Keys and values of one layer. A page's keys lie with their tokens side by side, so that one query
// meets all of them at once.
struct PagedKeys {
  at::Tensor keys_PKDt;
  at::Tensor values_PKtD;  // undefined: the keys are the values
};

// The pages of all rows, on the cache's device, int64. Places count from the start of a row's first
// page; the new token has place end - 1, and attends to places [begin, end).
struct RowPages {
  at::Tensor pages_BN;  // a shorter row is filled up with any page
  at::Tensor begin_B, end_B;
};

// Writes the new keys and values into their places and attends. Scores and sums are in fp32, in
// fp64 for doubles; the result is rounded once. On the CPU in fp32, bf16 and fp64 the pages are
// read where they lie (unless keys are values), and a row's bits depend on that row alone;
// elsewhere they are gathered first. The work is spread over at::get_num_threads(). Not
// differentiable.
// Shapes: q_BHD, k_BKD, v_BKD in the cache's dtype; returns [B, H, D].
at::Tensor attend_pages(const AttentionSpec& spec, const RowPages& rows, const PagedKeys& cache,
                        const at::Tensor& q_BHD, const at::Tensor& k_BKD, const at::Tensor& v_BKD);

}  // namespace ringside::engine
