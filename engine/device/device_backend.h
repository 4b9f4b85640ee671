// Device backends: the kinds of device that this program is linked for, and what differs between
// them.
//
// The CPU backend is always linked. A backend of another kind lives in an object file that
// registers it when the program starts, so that the objects that a program is linked from decide
// what it has.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/product_plan.h"
#include "sp/attention/ring_step_kernels.h"
#include "sp/mesh/process_groups.h"

namespace ringside::engine {

// Thread safety: any thread, after the start of main().
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // The kind of device.
  virtual c10::DeviceType type() const = 0;
  // The word of a configuration that chooses it: "cpu", "cuda".
  virtual std::string name() const = 0;

  // Number of devices that this process can use now.
  virtual int64_t device_count() const = 0;
  // Why device_count() is 0, as half a sentence; empty otherwise.
  virtual std::string reason_none() const = 0;
  // What its maker calls a device below device_count(): "NVIDIA H200". "CPU" for the CPU.
  virtual std::string device_name(int64_t index) const = 0;
  // What the backend was built with and what it found on this machine, one fact a line.
  virtual std::vector<std::string> describe() const = 0;

  // Connects the groups for tensors on `device`. The function that it returns is called for the
  // groups in ProcessGroups' order, the world first.
  // Collective over: the world, both calls.
  // Blocks: until every rank has joined, for at most the timeout.
  // Throws: a std::exception of the backend's library when a rank does not join in time.
  // connect_groups() below waits for all ranks first, and names those that are missing.
  virtual sp::ProcessGroups::Connect tensor_groups(const sp::Mesh& mesh,
                                                   const sp::GroupRendezvous& rendezvous,
                                                   c10::Device device) const = 0;
  // Kernels of attention for tensors on such devices. products: read on the CPU alone.
  virtual std::shared_ptr<const sp::RingStepKernels> attention_kernels(
      const ProductPlan& products) const = 0;
};

// Every backend of this program, the CPU's first.
std::vector<const DeviceBackend*> device_backends();

// The backend of a kind of device.
// Throws: std::invalid_argument when this program has no backend of that type.
const DeviceBackend& device_backend(c10::DeviceType type);

// Registers a backend. Define one static object of it in the object file that holds the backend.
class DeviceBackendRegistration {
 public:
  // Makes it known to device_backend() and what lists backends.
  // Thread safety: before main() only.
  explicit DeviceBackendRegistration(std::unique_ptr<const DeviceBackend> backend);
};

// A rank's device, or why it cannot have the one it asked for.
struct DeviceChoice {
  c10::Device device = c10::Device(c10::kCPU);
  std::string error{};  // a sentence without a full stop; empty when `device` can be used
};

// The device of the rank with this number on its machine. `wanted` is the name of a backend, or
// "auto": the first backend beside the CPU's that has a device, else the CPU.
DeviceChoice choose_device(std::string_view wanted, int64_t local_rank);

// Groups of a mesh whose tensors are on `device`, those of `more` included. Control data goes as
// sp::host_groups() says.
// Collective over: the world.
// Blocks: until every rank has joined.
// Throws: std::runtime_error that names the ranks that have not come within the timeout; then as
// DeviceBackend::tensor_groups(); std::invalid_argument as device_backend().
sp::ProcessGroups connect_groups(const sp::Mesh& mesh, const sp::GroupRendezvous& rendezvous,
                                 c10::Device device, const std::vector<sp::Axes>& more = {});

}  // namespace ringside::engine
