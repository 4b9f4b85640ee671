// Copies of device tensors to the host that run beside the computation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>

#include "engine/device/device_event.h"

namespace ringside::engine {

// The copies run on a side stream, after what the current stream has been given when the object is
// made. On the CPU they are done at once.
// Thread safety: none, except finish()'s event.
class Download {
 public:
  // stream: of make_side_stream() for the device of the sources.
  explicit Download(const std::optional<c10::Stream>& stream);

  // host = source, converted to host's dtype on the device. The source must not change before the
  // event of finish().
  // Shapes: equal numbers of elements. host: contiguous and pinned, or on the CPU's own device
  // ordinary memory.
  // Blocks: never.
  // Throws: c10::Error, for a device, when host is not pinned and contiguous.
  void add(const at::Tensor& source, at::Tensor host);

  // The event at which every copy has arrived. The host may read after synchronize().
  std::shared_ptr<const DeviceEvent> finish();

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace ringside::engine
