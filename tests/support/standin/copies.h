// Copies between the host and the stand-in's devices, and reads of one number, with CUDA's rules of
// what blocks the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::standin {

// A download waits for its stream unless it is non_blocking into pinned memory. An upload blocks
// unless it is non_blocking from pinned memory. Both also need one dtype and contiguous tensors:
// otherwise CUDA goes through a temporary in pageable memory. Returns `to`.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking);
// A blocking copy_from() that first gives `to` the size of `from`.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to);
// The value of a tensor of one element. Counts a host sync named "item".
// Blocks: until the stream's transfers are complete.
at::Scalar local_scalar_dense(const at::Tensor& tensor);

// Sets the size; grows the storage and keeps its bytes.
const at::Tensor& set_size(const at::Tensor& tensor, c10::IntArrayRef size);

}  // namespace ringside::standin
