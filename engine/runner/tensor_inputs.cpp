#include "engine/runner/tensor_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ringside::engine {

TensorEntries divide_entries(const at::Tensor& source_n, const RowParts& rows) {
  const auto ranks = static_cast<int64_t>(rows.rows_of.size());
  std::vector<int64_t> ends;  // of each rank's rows
  for (const int64_t count : rows.rows_of) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + count);
  }
  const at::Tensor source = source_n.contiguous();
  const int64_t* const row = source.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> entries(ranks);
  for (int64_t n = 0; n < source.numel(); ++n) {
    const auto end = std::ranges::upper_bound(ends, row[n]);
    TORCH_CHECK(row[n] >= 0 && end != ends.end(), "tensor ranks: entry ", n, " of row ", row[n],
                " where there are ", ends.back());
    entries[end - ends.begin()].push_back(n);
  }
  TensorEntries tables;
  std::vector<int64_t> own, order, places(source.numel());
  const sp::Range own_rows = rows.own();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    tables.entries_of.push_back(static_cast<int64_t>(entries[rank].size()));
    for (const int64_t n : entries[rank]) {
      places[n] = static_cast<int64_t>(order.size());
      order.push_back(n);
      if (rank == rows.ranks->rank()) {
        own.push_back(row[n] - own_rows.begin);
      }
    }
  }
  tables.source_m = at::tensor(own, at::kLong);
  tables.entry_n = at::tensor(order, at::kLong);
  tables.place_n = at::tensor(places, at::kLong);
  return tables;
}

}  // namespace ringside::engine
