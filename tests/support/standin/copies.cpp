#include "tests/support/standin/copies.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "tests/support/standin/kernel_view.h"
#include "tests/support/standin/machine.h"
#include "tests/support/standin/streams.h"

namespace ringside::standin {
namespace {

bool copied_directly(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() == to.scalar_type() && from.is_contiguous() && to.is_contiguous();
}

std::string shape_of_copy(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), tensor.sizes());
}

void upload(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const StreamKey stream = current_stream(to.device().index());
  const bool pinned = machine().pinned.owns(from.const_data_ptr());
  const std::string name = "upload of " + shape_of_copy(from);
  const Moment moment = machine().begin(stream, name, uses_of({from}), uses_of({to}));
  machine().counters.upload(stream.device, to.nbytes());
  kernel_view(to).copy_(kernel_view(from));
  if (pinned && non_blocking && copied_directly(from, to)) {
    machine().pinned.guard(use_of(from).bytes, moment, PinnedMemory::Copy::kReads, name);
    return;
  }
  machine().counters.blocking_upload(stream.device, shape_of_copy(from));
  if (!non_blocking) {
    machine().host_knows(stream.device, machine().accesses.snapshot(stream));
  }
}

void download(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const StreamKey stream = current_stream(from.device().index());
  const bool pinned = machine().pinned.owns(to.const_data_ptr());
  const std::string name = "download of " + shape_of_copy(from);
  const Moment moment = machine().begin(stream, name, uses_of({from}), uses_of({to}));
  machine().counters.download(stream.device, from.nbytes());
  if (pinned && non_blocking && copied_directly(from, to)) {
    kernel_view(to).copy_(kernel_view(from));
    machine().pinned.guard(use_of(to).bytes, moment, PinnedMemory::Copy::kWrites, name);
    return;
  }
  machine().host_waits(stream.device, machine().accesses.snapshot(stream), name);
  kernel_view(to).copy_(kernel_view(from));
}

// Between devices CUDA runs the copy on the source's stream and orders the destination's stream
// before and after it.
void copy_on_devices(const at::Tensor& from, const at::Tensor& to) {
  const StreamKey source = current_stream(from.device().index());
  const StreamKey target = current_stream(to.device().index());
  if (source != target) {
    machine().accesses.join(source, machine().accesses.snapshot(target));
  }
  machine().begin(source, "aten::copy_", uses_of({from}), uses_of({to}));
  machine().counters.kernel(source.device, "aten::copy_");
  kernel_view(to).copy_(kernel_view(from));
  if (source != target) {
    machine().accesses.join(target, machine().accesses.snapshot(source));
  }
}

}  // namespace

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.numel() == 0) {
    return to;
  }
  if (from.is_cpu()) {
    upload(from, to, non_blocking);
  } else if (to.is_cpu()) {
    download(from, to, non_blocking);
  } else {
    copy_on_devices(from, to);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.is_privateuseone()) {
    set_size(to, from.sizes());
  } else {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  const StreamKey stream = current_stream(tensor.device().index());
  machine().begin(stream, "item", uses_of({tensor}), {});
  machine().host_waits(stream.device, machine().accesses.snapshot(stream), "item");
  return at::_local_scalar_dense(kernel_view(tensor));
}

const at::Tensor& set_size(const at::Tensor& tensor, c10::IntArrayRef size) {
  if (tensor.sizes() == size) {
    return tensor;
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  const size_t bytes =
      at::detail::computeStorageNbytesContiguous(size, tensor.itemsize(), tensor.storage_offset());
  if (bytes > tensor.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), bytes);
  }
  return tensor;
}

}  // namespace ringside::standin
