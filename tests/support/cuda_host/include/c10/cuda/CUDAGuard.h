// For the host: there is one device, memory of the host.
#pragma once

#include <c10/core/Device.h>

namespace c10::cuda {

struct CUDAGuard {
  // Nothing to choose.
  explicit CUDAGuard(c10::Device) {}
};

}  // namespace c10::cuda
