// Checks of operands: error messages that name the function, the tensors and what was found.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace ringside::engine {

// An operand and what a message calls it.
struct NamedTensor {
  const char* name;
  const at::Tensor& tensor;  // undefined ones are passed over
};

// Throws: c10::Error unless all tensors are on the device of the first.
void check_same_device(const char* function, std::initializer_list<NamedTensor> tensors);

// Throws: c10::Error unless all tensors are of the first one's dtype, and on its device.
void check_alike(const char* function, std::initializer_list<NamedTensor> tensors);

}  // namespace ringside::engine
