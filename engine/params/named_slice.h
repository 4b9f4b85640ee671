// Slices of named parameters: what a rank holds of a model, as checkpoints write and read it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ringside::engine {

// The elements [begin, end()) of a flattened parameter, or of an optimizer moment of that shape.
struct NamedSlice {
  std::string name;
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t begin = 0;
  at::Tensor values;  // [n] view in the master dtype, on the rank's device; outside autograd

  int64_t end() const { return begin + values.numel(); }
};

// The slice that is the whole tensor, as a view.
// Shapes: tensor is contiguous.
// Throws: c10::Error when it is not.
NamedSlice whole_slice(std::string name, const at::Tensor& tensor);

// The share of one of `writers` that all hold these slices: a run of their elements, of floor or
// ceil size. The shares are disjoint, and together they are all elements. Slices are cut where a
// share ends, also inside a parameter.
// Throws: c10::Error unless 0 <= writer < writers.
std::vector<NamedSlice> share_of(const std::vector<NamedSlice>& slices, int64_t writer,
                                 int64_t writers);

}  // namespace ringside::engine
