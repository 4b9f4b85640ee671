// Streams of transfers that run beside the computation.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace ringside::engine {

// A stream of `device` beside the one that computes; nullopt for the CPU. Keep it for the whole
// run: the allocator pools memory by stream.
inline std::optional<c10::Stream> make_side_stream(c10::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

}  // namespace ringside::engine
