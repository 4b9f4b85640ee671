#include "engine/device/activation_offload.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "engine/device/download.h"

namespace ringside::engine {
namespace {

// All bytes of a tensor without gaps, in memory order.
at::Tensor flattened(const at::Tensor& x) { return x.as_strided({x.numel()}, {1}); }

// Empty tensors, which a rank without tokens has, stay: memory of no size is not pinned.
bool travels(const at::Tensor& x) { return x.defined() && x.numel() > 0; }

c10::Stream current_stream(const c10::Stream& of_device) {
  return c10::impl::VirtualGuardImpl(of_device.device_type()).getStream(of_device.device());
}

}  // namespace

std::size_t ActivationOffload::put(std::vector<at::Tensor> tensors) {
  if (stream_ && !entries_.empty()) {
    start_to_host(entries_.back());
  }
  Entry entry;
  entry.tensors = std::move(tensors);
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

std::vector<at::Tensor> ActivationOffload::take(std::size_t ticket) {
  Entry& entry = entries_.at(ticket);
  if (entry.place == Place::kHost) {
    start_to_device(entry);
  }
  if (entry.place == Place::kArriving) {
    entry.arrived->make_wait(current_stream(*stream_));
    entry.host.clear();
  }
  if (ticket > 0 && entries_[ticket - 1].place == Place::kHost) {
    start_to_device(entries_[ticket - 1]);
  }
  return std::exchange(entry.tensors, {});
}

void ActivationOffload::start_to_host(Entry& entry) {
  if (entry.tensors.empty()) {
    return;  // taken already
  }
  Download download(stream_);
  for (at::Tensor& tensor : entry.tensors) {
    if (!travels(tensor)) {
      entry.sizes.emplace_back();
      entry.strides.emplace_back();
      continue;
    }
    if (!tensor.is_non_overlapping_and_dense()) {
      tensor = tensor.contiguous();
    }
    entry.sizes.push_back(tensor.sizes().vec());
    entry.strides.push_back(tensor.strides().vec());
    at::Tensor host = at::empty(
        {tensor.numel()}, at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(true));
    download.add(flattened(tensor), host);
    tensor = host;
  }
  entry.place = Place::kHost;
}

// The memory is the current stream's, so that whatever uses it later is ordered as for any other
// tensor. The side stream waits until it is free.
void ActivationOffload::start_to_device(Entry& entry) {
  const at::NoGradGuard no_grad;
  const c10::impl::VirtualGuardImpl guard(stream_->device_type());
  std::vector<at::Tensor> device(entry.tensors.size());
  for (std::size_t i = 0; i < device.size(); ++i) {
    const at::Tensor& host = entry.tensors[i];
    if (!travels(host)) {
      device[i] = host;
    } else {
      device[i] = at::empty(host.sizes(), at::dtype(host.scalar_type()).device(stream_->device()));
      guard.recordDataPtrOnStream(device[i].storage().data_ptr(), *stream_);
    }
  }
  DeviceEvent allocated(stream_->device_type());
  allocated.record(current_stream(*stream_));
  allocated.make_wait(*stream_);
  const c10::StreamGuard on_side_stream(*stream_);
  for (std::size_t i = 0; i < device.size(); ++i) {
    if (travels(device[i])) {
      device[i].copy_(entry.tensors[i], /*non_blocking=*/true);
      device[i] = device[i].as_strided(entry.sizes[i], entry.strides[i]);
    }
  }
  entry.host = std::exchange(entry.tensors, std::move(device));
  entry.arrived.emplace(stream_->device_type());
  entry.arrived->record(*stream_);
  entry.place = Place::kArriving;
}

}  // namespace ringside::engine
