// What a tensor-parallel rank has of an input: the loss entries whose source token is among its
// rows. Host tables only.
//
// Shapes: n = loss entries of the sequence-parallel rank, m = those of this tensor rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/nn/tensor_rows.h"

namespace ringside::engine {

// Tables of the entries on the host, int64.
struct TensorEntries {
  std::vector<int64_t> entries_of;  // entries of each tensor rank
  at::Tensor source_m;              // rows of this rank's entries among its own rows
  at::Tensor entry_n, place_n;      // as in EntryParts
};

// The entries of each rank, in the order of the entries, from their source rows.
// Shapes: source_n int64 [n] on the host, rows among all of `rows`, which is cut.
// Throws: c10::Error on a row outside.
TensorEntries divide_entries(const at::Tensor& source_n, const RowParts& rows);

}  // namespace ringside::engine
