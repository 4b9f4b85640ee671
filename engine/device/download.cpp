#include "engine/device/download.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ringside::engine {

Download::Download(const std::optional<c10::Stream>& stream) : stream_(stream) {
  if (stream_) {
    const c10::Device device = stream_->device();
    DeviceEvent computed(device.type());
    computed.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    computed.make_wait(*stream_);
  }
}

void Download::add(const at::Tensor& source, at::Tensor host) {
  const at::NoGradGuard no_grad;
  if (!stream_) {
    host.copy_(source.view(host.sizes()));
    return;
  }
  TORCH_CHECK(host.is_pinned() && host.is_contiguous(),
              "download: the host tensor must be pinned and contiguous");
  const c10::impl::VirtualGuardImpl guard(stream_->device_type());
  guard.recordDataPtrOnStream(source.storage().data_ptr(), *stream_);
  const c10::StreamGuard on_side_stream(*stream_);
  host.copy_(source.to(host.scalar_type()).view(host.sizes()), /*non_blocking=*/true);
}

std::shared_ptr<const DeviceEvent> Download::finish() {
  auto arrived =
      std::make_shared<DeviceEvent>(stream_ ? stream_->device_type() : c10::DeviceType::CPU);
  if (stream_) {
    arrived->record(*stream_);
  }
  return arrived;
}

}  // namespace ringside::engine
