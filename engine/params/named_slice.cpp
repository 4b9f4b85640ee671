#include "engine/params/named_slice.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace ringside::engine {

NamedSlice whole_slice(std::string name, const at::Tensor& tensor) {
  return {std::move(name), tensor.sizes().vec(), 0, tensor.detach().view({-1})};
}

std::vector<NamedSlice> share_of(const std::vector<NamedSlice>& slices, int64_t writer,
                                 int64_t writers) {
  TORCH_CHECK(0 <= writer && writer < writers, "share ", writer, " of ", writers);
  int64_t total = 0;
  for (const NamedSlice& slice : slices) {
    total += slice.values.numel();
  }
  const int64_t first = total * writer / writers;
  const int64_t last = total * (writer + 1) / writers;
  std::vector<NamedSlice> share;
  int64_t at = 0;  // of the slice's first element among all
  for (const NamedSlice& slice : slices) {
    const int64_t numel = slice.values.numel();
    const int64_t from = std::max(first, at) - at;
    const int64_t to = std::min(last, at + numel) - at;
    if (from < to) {
      share.push_back(
          {slice.name, slice.shape, slice.begin + from, slice.values.narrow(0, from, to - from)});
    }
    at += numel;
  }
  return share;
}

}  // namespace ringside::engine
