// Asynchronous uploads of small host tensors to a rank's device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>
#include <span>
#include <vector>

#include "engine/device/device_event.h"

namespace ringside::engine {

// Host tensors on their way to a device. They travel as one block of pinned memory, on a stream of
// their own, so the device computes meanwhile.
// Thread safety: none.
class Upload {
 public:
  // Starts the transfer on `stream`, of make_side_stream(device). For a CPU device the tensors
  // themselves are the result.
  // Shapes: contiguous CPU tensors of any dtype and shape; undefined ones stay undefined.
  // Blocks: never.
  // Throws: c10::Error on a tensor that is on a device or not contiguous.
  Upload(std::span<const at::Tensor> host, c10::Device device,
         const std::optional<c10::Stream>& stream);

  // The tensors on the device, in the order given. The current stream waits for the transfer; the
  // host does not. Call it once.
  std::vector<at::Tensor> take();

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor block_;  // on the device; the memory of tensors_
  DeviceEvent arrived_;
};

}  // namespace ringside::engine
