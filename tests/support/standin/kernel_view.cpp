#include "tests/support/standin/kernel_view.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <utility>

#include "tests/support/standin/machine.h"
#include "tests/support/standin/streams.h"

namespace ringside::standin {
namespace {

void* address_for_kernels(const at::Tensor& tensor) {
  const void* data = tensor.storage().data();
  if (tensor.is_privateuseone()) {
    return machine().memory.kernel_address(data);
  }
  return machine().pinned.owns(data) ? machine().pinned.kernel_address(data) : nullptr;
}

}  // namespace

at::Tensor kernel_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return tensor;
  }
  void* address = address_for_kernels(tensor);
  TORCH_CHECK(address != nullptr || !tensor.is_privateuseone() || tensor.numel() == 0,
              "stand-in: the storage of a tensor of shape ", tensor.sizes(), " is released");
  if (address == nullptr && !tensor.is_privateuseone()) {
    return tensor;
  }
  // Over the whole storage: a kernel's checks for overlap must see that views share memory.
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                       c10::DataPtr(address, c10::kCPU), c10::GetCPUAllocator(),
                       /*resizable=*/true);
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  impl->set_storage_offset(tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  return view;
}

Use use_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return {};
  }
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const size_t element = tensor.itemsize();
  return {bytes_at(tensor.const_data_ptr(), (last + 1) * element), element,
          tensor.is_non_overlapping_and_dense()};
}

std::vector<Use> uses_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Use> uses;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage() && tensor.numel() > 0 &&
        address_for_kernels(tensor) != nullptr) {
      uses.push_back(use_of(tensor));
    }
  }
  return uses;
}

void run_kernel(const std::string& op, const std::vector<at::Tensor>& reads,
                const std::vector<at::Tensor>& writes,
                const std::function<void(const std::vector<at::Tensor>& reads,
                                         const std::vector<at::Tensor>& writes)>& body) {
  TORCH_CHECK(!reads.empty() || !writes.empty(), op, ": no tensors");
  const c10::Device device = (writes.empty() ? reads : writes).front().device();
  const auto views = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_privateuseone() && tensor.device() == device, op,
                  ": expected all tensors on ", device, ", found one on ", tensor.device());
      result.push_back(kernel_view(tensor));
    }
    return result;
  };
  const auto read_views = views(reads), write_views = views(writes);
  machine().begin(current_stream(device.index()), op, uses_of(reads), uses_of(writes));
  machine().counters.kernel(device.index(), op);
  body(read_views, write_views);
}

}  // namespace ringside::standin
