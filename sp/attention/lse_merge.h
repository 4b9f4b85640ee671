// Merge of partial attention results of the same query rows over disjoint keys, by log-sum-exp.
//
// Shapes: S = rows of a ring share, B = blocks, n = rows of a block, H = query heads of the share,
// h = of the part, D = head dim.
// Source: Milakov and Gimelshein 2018 (online softmax), in the form of flash decoding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ringside::sp {

// Attention of query rows to some of their keys.
struct PartialAttention {
  at::Tensor out;  // [..., D]
  at::Tensor lse;  // [...], natural log; -inf where no key was attended
};

// Rows and heads of a part in the whole: row i of block b is row begins[b] + i, head j is head
// head_begin + j.
struct PartPlace {
  const std::vector<int64_t>& begins;
  int64_t head_begin = 0;
};

// merge_rows merges the part into the whole. Where both LSEs are -inf, the row becomes zero with
// LSE -inf, never NaN. write_rows overwrites the rows.
// Shapes: whole: out_SHD and lse_SH, contiguous; part: out_BnhD and lse_Bnh; one accumulation
// dtype, fp32 or fp64. No row may be in two blocks.
// Throws: c10::Error on another dtype (bf16 accumulators lose a bit per merge), on a whole that is
// not contiguous, and on rows or heads outside the share.
void merge_rows(PartialAttention& whole, const PartialAttention& part, const PartPlace& place);
void write_rows(PartialAttention& whole, const PartialAttention& part, const PartPlace& place);

}  // namespace ringside::sp
