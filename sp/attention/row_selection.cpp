#include "sp/attention/row_selection.h"

#include <ATen/ATen.h>

namespace ringside::sp {
namespace {

// The distance between the blocks' begins; 0 when it is not even or blocks would overlap.
int64_t even_spacing(const std::vector<int64_t>& begins, int64_t rows) {
  if (begins.size() == 1) {
    return rows;
  }
  const int64_t spacing = begins[1] - begins[0];
  for (std::size_t b = 1; b < begins.size(); ++b) {
    if (begins[b] - begins[b - 1] != spacing) {
      return 0;
    }
  }
  return spacing >= rows ? spacing : 0;
}

}  // namespace

RowSelection::RowSelection(const std::vector<int64_t>& begins, int64_t rows)
    : num_blocks_(static_cast<int64_t>(begins.size())), rows_(rows) {
  TORCH_CHECK(num_blocks_ >= 1 && rows_ >= 1, "RowSelection of ", num_blocks_, " blocks of ", rows_,
              " rows");
  first_ = begins.front();
  spacing_ = even_spacing(begins, rows);
  if (spacing_ == 0) {
    index_ = at::empty({num_blocks_ * rows_}, at::kLong);
    int64_t* index = index_.data_ptr<int64_t>();
    for (const int64_t begin : begins) {
      for (int64_t i = 0; i < rows_; ++i) {
        *index++ = begin + i;
      }
    }
  }
}

at::Tensor RowSelection::view(const at::Tensor& share) const {
  std::vector<int64_t> sizes = share.sizes().vec();
  std::vector<int64_t> strides = share.strides().vec();
  sizes[0] = rows_;
  sizes.insert(sizes.begin(), num_blocks_);
  strides.insert(strides.begin(), spacing_ * share.stride(0));
  return share.as_strided(sizes, strides, share.storage_offset() + first_ * share.stride(0));
}

at::Tensor RowSelection::gather(const at::Tensor& share) const {
  if (spacing_ > 0) {
    return view(share);
  }
  std::vector<int64_t> sizes = share.sizes().vec();
  sizes[0] = rows_;
  sizes.insert(sizes.begin(), num_blocks_);
  return share.index_select(0, index_).view(sizes);
}

void RowSelection::add(at::Tensor& share, const at::Tensor& values) const {
  if (spacing_ > 0) {
    view(share).add_(values);
  } else {
    share.index_add_(0, index_, values.flatten(0, 1));
  }
}

}  // namespace ringside::sp
