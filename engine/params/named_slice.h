// Slices of named parameters: what a rank holds of a model, as checkpoints write and read it.
//
// A parameter is the matrix [shape[0], all other dims]. A slice is a run of the elements of a block
// of it, row after row: of all columns, or of some that a tensor-parallel rank has.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sp/layout/range.h"

namespace ringside::engine {

// The elements [begin, end()) of a flattened block of a parameter, or of an optimizer moment of
// that shape.
struct NamedSlice {
  std::string name;
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t begin = 0;
  at::Tensor values;  // [n] view in the master dtype, on the rank's device; outside autograd
  // Of the block; nullopt: all of the parameter.
  std::optional<sp::Range> columns = std::nullopt;

  int64_t end() const { return begin + values.numel(); }
};

// The slice that is the whole tensor, as a view.
// Shapes: tensor is contiguous.
// Throws: c10::Error when it is not.
NamedSlice whole_slice(std::string name, const at::Tensor& tensor);

// The elements [begin, begin + count) of a slice's values, as a slice of the same block.
// Throws: c10::Error when it has not so many.
NamedSlice part_of(const NamedSlice& slice, int64_t begin, int64_t count);

// The share of one of `writers` that all hold these slices: a run of their elements, of floor or
// ceil size. The shares are disjoint, and together they are all elements. Slices are cut where a
// share ends, also inside a parameter.
// Throws: c10::Error unless 0 <= writer < writers.
std::vector<NamedSlice> share_of(const std::vector<NamedSlice>& slices, int64_t writer,
                                 int64_t writers);

// A run of elements of a block, without values.
struct ElementBlock {
  sp::Range columns;   // of the matrix
  sp::Range elements;  // of the flattened block
};

// Elements that two runs of one matrix both have: `rows` rows of `width` elements each. The first
// one is element `in_a` of run a and `in_b` of run b; the rows lie `stride_a` and `stride_b` apart.
struct SharedElements {
  int64_t in_a = 0, in_b = 0;
  int64_t rows = 0, width = 0;
  int64_t stride_a = 0, stride_b = 0;
};

// All of them, each once, in at most five rectangles.
std::vector<SharedElements> shared_elements(const ElementBlock& a, const ElementBlock& b);

// A slice's run, with its columns.
ElementBlock block_of(const NamedSlice& slice);

// A run of the flattened parameter that has all elements of a slice: the slice's own, or the rows
// that it has columns of.
sp::Range run_around(const NamedSlice& slice);

// Copies the elements that two slices of one parameter both have, cast to the dtype of `into` and
// moved to its device. Returns how many there are.
// Throws: c10::Error on different shapes of the parameter, and when the values of `into` are not
// contiguous.
int64_t copy_shared(const NamedSlice& from, const NamedSlice& into);

}  // namespace ringside::engine
