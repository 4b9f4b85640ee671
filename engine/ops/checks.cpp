#include "engine/ops/checks.h"

#include <c10/util/Exception.h>

namespace ringside::engine {

void check_same_device(const char* function, std::initializer_list<NamedTensor> tensors) {
  const NamedTensor& first = *tensors.begin();
  for (const NamedTensor& other : tensors) {
    TORCH_CHECK(!other.tensor.defined() || other.tensor.device() == first.tensor.device(), function,
                ": ", first.name, " is on ", first.tensor.device(), ", ", other.name, " on ",
                other.tensor.device());
  }
}

void check_alike(const char* function, std::initializer_list<NamedTensor> tensors) {
  check_same_device(function, tensors);
  const NamedTensor& first = *tensors.begin();
  for (const NamedTensor& other : tensors) {
    TORCH_CHECK(!other.tensor.defined() || other.tensor.scalar_type() == first.tensor.scalar_type(),
                function, ": ", first.name, " is ", first.tensor.scalar_type(), ", ", other.name,
                " ", other.tensor.scalar_type());
  }
}

}  // namespace ringside::engine
