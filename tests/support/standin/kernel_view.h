// CPU tensors over the memory of device tensors: what kernels of the stand-in work on.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/standin/address.h"

namespace ringside::standin {

// A CPU tensor over the same bytes. It does not own them: the original must live longer. A pinned
// tensor gives a view that no guard covers; other tensors are returned as they are.
at::Tensor kernel_view(const at::Tensor& tensor);

// The bytes of a tensor, from its first to its last element.
Use use_of(const at::Tensor& tensor);
// Those of the tensors that lie on a device or are pinned.
std::vector<Use> uses_of(const std::vector<at::Tensor>& tensors);

// Runs `body` as one kernel on the current stream of the tensors' device. For tests' twins of
// kernels that exist for CUDA only.
// Throws: c10::Error when the tensors are not all on one stand-in device.
void run_kernel(const std::string& op, const std::vector<at::Tensor>& reads,
                const std::vector<at::Tensor>& writes,
                const std::function<void(const std::vector<at::Tensor>& reads,
                                         const std::vector<at::Tensor>& writes)>& body);

}  // namespace ringside::standin
