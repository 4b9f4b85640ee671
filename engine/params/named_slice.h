// A range of one named parameter, as checkpoints store it and loaders fill it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ringside::engine {

struct NamedSlice {
  std::string name;            // of the parameter
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t begin = 0;           // first element, in the flattened parameter
  at::Tensor values;           // [n] view of elements [begin, begin + n); on the rank's device
};

}  // namespace ringside::engine
