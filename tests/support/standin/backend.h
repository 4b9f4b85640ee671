// c10d backend for the stand-in's tensors, with NCCL's rules. Another backend
// moves the bytes, so results have the bits that a CPU run over that has; the Fabric decides when.
//
// A launch runs on the communicator's own stream, after what the current stream had queued, and
// returns at once. Work::wait() orders the current stream and does not block the host; a kernel
// that uses the result blocks until it is there. Tensors must be contiguous and on the
// communicator's device. Grouped calls: startCoalescing, endCoalescing.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tests/support/standin/fabric.h"

namespace ringside::standin {

// A Fabric that reports to the stand-in's log.
std::shared_ptr<Fabric> make_fabric(std::chrono::milliseconds deadline);

// Throws: c10::Error when two ranks of the group share a device, as NCCL does.
void check_own_devices(const std::string& group, const std::vector<int>& devices);

// group: the communicator's name, equal on its ranks. devices: the device index of each rank.
// mover: this rank's end of a group of the same ranks, for tensors on the CPU.
// Throws: as check_own_devices().
c10::intrusive_ptr<c10d::Backend> make_backend(std::shared_ptr<Fabric> fabric, std::string group,
                                               std::vector<int> devices,
                                               c10::intrusive_ptr<c10d::Backend> mover);

}  // namespace ringside::standin
