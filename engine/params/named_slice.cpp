#include "engine/params/named_slice.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <utility>

namespace ringside::engine {
namespace {

// Columns of the matrix that a parameter is.
int64_t columns_of(const std::vector<int64_t>& shape) {
  int64_t columns = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) {
    columns *= shape[d];
  }
  return columns;
}

// Rows of a run that is not empty: whole ones, but the first and the last.
struct Rows {
  ElementBlock run;
  int64_t width = run.columns.size();
  sp::Range rows{run.elements.begin / width, (run.elements.end - 1) / width + 1};

  // The columns of the matrix that it has of a row.
  sp::Range columns(int64_t row) const {
    const bool is_first = row == rows.begin, is_last = row + 1 == rows.end;
    return {run.columns.begin + (is_first ? run.elements.begin % width : 0),
            is_last ? run.columns.begin + (run.elements.end - 1) % width + 1 : run.columns.end};
  }
  // Place of an element in the run.
  int64_t place(int64_t row, int64_t column) const {
    return row * width + column - run.columns.begin - run.elements.begin;
  }
};

at::Tensor rectangle(const at::Tensor& values, int64_t first, int64_t stride,
                     const SharedElements& shared) {
  return values.as_strided({shared.rows, shared.width}, {stride, 1},
                           values.storage_offset() + first);
}

}  // namespace

NamedSlice whole_slice(std::string name, const at::Tensor& tensor) {
  return {std::move(name), tensor.sizes().vec(), 0, tensor.detach().view({-1})};
}

NamedSlice part_of(const NamedSlice& slice, int64_t begin, int64_t count) {
  return {slice.name, slice.shape, slice.begin + begin, slice.values.narrow(0, begin, count),
          slice.columns};
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
      share.push_back(part_of(slice, from, to - from));
    }
    at += numel;
  }
  return share;
}

std::vector<SharedElements> shared_elements(const ElementBlock& a, const ElementBlock& b) {
  if (a.elements.empty() || b.elements.empty()) {
    return {};
  }
  if (a.columns == b.columns) {
    const int64_t begin = std::max(a.elements.begin, b.elements.begin);
    const int64_t count = std::min(a.elements.end, b.elements.end) - begin;
    return count <= 0
               ? std::vector<SharedElements>{}
               : std::vector<SharedElements>{
                     {begin - a.elements.begin, begin - b.elements.begin, 1, count, count, count}};
  }
  const Rows in_a{a}, in_b{b};
  const sp::Range rows{std::max(in_a.rows.begin, in_b.rows.begin),
                       std::min(in_a.rows.end, in_b.rows.end)};
  // Between these rows both have the same columns of each row.
  std::array<int64_t, 6> bounds{rows.begin,          rows.end,
                                in_a.rows.begin + 1, in_a.rows.end - 1,
                                in_b.rows.begin + 1, in_b.rows.end - 1};
  std::ranges::sort(bounds);
  std::vector<SharedElements> shared;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int64_t row = std::max(bounds[i], rows.begin);
    const int64_t count = std::min(bounds[i + 1], rows.end) - row;
    if (count <= 0) {
      continue;
    }
    const sp::Range of_a = in_a.columns(row), of_b = in_b.columns(row);
    const int64_t first = std::max(of_a.begin, of_b.begin);
    const int64_t width = std::min(of_a.end, of_b.end) - first;
    if (width > 0) {
      shared.push_back(
          {in_a.place(row, first), in_b.place(row, first), count, width, in_a.width, in_b.width});
    }
  }
  return shared;
}

ElementBlock block_of(const NamedSlice& slice) {
  return {slice.columns.value_or(sp::Range{0, columns_of(slice.shape)}),
          {slice.begin, slice.end()}};
}

sp::Range run_around(const NamedSlice& slice) {
  if (!slice.columns || slice.values.numel() == 0) {
    return {slice.begin, slice.end()};
  }
  const sp::Range rows = Rows{block_of(slice)}.rows;
  const int64_t columns = columns_of(slice.shape);
  return {rows.begin * columns, rows.end * columns};
}

int64_t copy_shared(const NamedSlice& from, const NamedSlice& into) {
  TORCH_CHECK(from.shape == into.shape, "slices of ", into.name, " with parameters of shapes ",
              from.shape, " and ", into.shape);
  TORCH_CHECK(into.values.is_contiguous(), "slices of ", into.name,
              ": expected a contiguous slice to copy to");
  const at::Tensor source = from.values.contiguous();
  int64_t copied = 0;
  for (const SharedElements& shared : shared_elements(block_of(from), block_of(into))) {
    rectangle(into.values, shared.in_b, shared.stride_b, shared)
        .copy_(rectangle(source, shared.in_a, shared.stride_a, shared));
    copied += shared.rows * shared.width;
  }
  return copied;
}

}  // namespace ringside::engine
