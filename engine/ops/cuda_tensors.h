// What the CUDA implementations of operators do with tensors before they launch a kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>

#include "engine/ops/kernel_types.h"

namespace ringside::engine {

using OptionalTensor = std::optional<at::Tensor>;

// Dtypes of a kernel for this tensor.
// Throws: c10::Error for a dtype that the kernels do not take.
inline Types types_of(const at::Tensor& tensor, bool sums_in_fp32 = false) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return {Element::kBFloat16, true};
    case at::kHalf:
      return {Element::kHalf, true};
    case at::kFloat:
      return {Element::kFloat, true};
    case at::kDouble:
      return {Element::kDouble, sums_in_fp32};
    default:
      TORCH_CHECK(false, "CUDA kernels of the decoder take bf16, fp16, fp32 and fp64, got ",
                  tensor.scalar_type());
  }
}

// Of a tensor and its sums as they were saved.
inline Types types_of(const at::Tensor& tensor, const at::Tensor& sums) {
  return types_of(tensor, sums.scalar_type() == at::kFloat);
}

// Options of sums over it.
inline at::TensorOptions sums_of(const at::Tensor& tensor, const Types& types) {
  return tensor.options().dtype(types.sums_in_fp32 ? at::kFloat : at::kDouble);
}

// Of a tensor that may be absent.
inline const void* data_or_null(const OptionalTensor& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}

// The tensor without gaps, if there is one.
inline OptionalTensor contiguous(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(tensor->contiguous()) : std::nullopt;
}

// Throws: c10::Error unless all are on the device of the first.
inline void check_on(const at::Tensor& first, std::initializer_list<at::Tensor> others) {
  for (const at::Tensor& other : others) {
    TORCH_CHECK(other.device() == first.device(), "CUDA kernels of the decoder: tensors on ",
                first.device(), " and ", other.device());
  }
}

// Of a weight's gradient: the wider of the weight's dtype and that of the sums.
inline at::TensorOptions gradient_of(const at::Tensor& weight, const at::Tensor& rstd) {
  return weight.options().dtype(c10::promoteTypes(weight.scalar_type(), rstd.scalar_type()));
}

}  // namespace ringside::engine
