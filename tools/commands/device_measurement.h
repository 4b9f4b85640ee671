// Measured speeds of a device, for predictions of time.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "engine/device/device_backend.h"
#include "sp/plan/device_speeds.h"

namespace ringside::tools {

// Attention, forward and backward, over one document and a matrix product, each in bf16 (CPU: fp32)
// and in fp32; then transfers both ways between two ranks of this machine. What one machine cannot
// show is taken from the table of known devices. `notes` receives a sentence about each such
// figure. For the transfers it sets TORCH_FR_BUFFER_SIZE of this process, because the two ranks are
// threads.
// Blocks: for some seconds.
// Throws: c10::Error when an operation fails, for example without free memory.
sp::DeviceSpeeds measure_device(c10::Device device, std::vector<std::string>& notes);

}  // namespace ringside::tools
