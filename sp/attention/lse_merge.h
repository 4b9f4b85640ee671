// Merging partial attention results of the same query rows over disjoint sets of keys, by their
// log-sum-exp (Milakov and Gimelshein 2018, online softmax; the form used by flash decoding).
// Shapes: S = rows of a ring share, B = blocks, n = rows of a block, H = query heads of the share,
// h = of the part, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ringside::sp {

struct PartialAttention {
  at::Tensor out;  // [..., D]
  at::Tensor lse;  // [...], natural log; -inf where no key was attended
};

// Where a part belongs in the whole: row i of block b is row begins[b] + i, head j is head
// head_begin + j.
struct PartPlace {
  const std::vector<int64_t>& begins;
  int64_t head_begin = 0;
};

// whole: out_SHD and lse_SH, contiguous; part: out_BnhD and lse_Bnh. All in one accumulation dtype,
// fp32 or fp64 (others throw c10::Error: bf16 accumulators lose a bit per merge). No row may stand
// in two blocks. merge_rows merges the part in; where both LSEs are -inf the row becomes zero with
// LSE -inf, never NaN. write_rows overwrites the rows. Rows outside the share throw c10::Error.
void merge_rows(PartialAttention& whole, const PartialAttention& part, const PartPlace& place);
void write_rows(PartialAttention& whole, const PartialAttention& part, const PartPlace& place);

}  // namespace ringside::sp
