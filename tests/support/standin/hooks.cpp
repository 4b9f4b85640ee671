#include "tests/support/standin/hooks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>

#include "tests/support/standin/allocators.h"
#include "tests/support/standin/machine.h"
#include "tests/support/standin/streams.h"

namespace ringside::standin {
namespace {

class StandinHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }

  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    if (device >= 0) {
      set_current_device(device);
    }
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }

  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* p) const override { return machine().pinned.allocated(p); }
  at::Device getDeviceFromPtr(void* p) const override {
    TORCH_CHECK(machine().memory.owns(p), "not an address of a stand-in device: ", p);
    return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(machine().memory.device_of(p))};
  }

  // Random operators run the CPU's kernels, so that device and CPU draw the same numbers.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    const c10::DeviceGuard guard(storage.device());
    at::DataPtr fresh = device_allocator().allocate(size);
    const size_t kept = std::min(size, storage.nbytes());
    if (kept > 0) {
      const Use from{bytes_at(storage.data(), kept), 1, /*dense=*/false};
      const Use to{bytes_at(fresh.get(), kept), 1, /*dense=*/true};
      machine().accesses.launch(current_stream(storage.device().index()), "resize", {}, {from});
      machine().in_flight.complete_conflicts({from}, {to});
      std::memcpy(machine().memory.kernel_address(fresh.get()),
                  machine().memory.kernel_address(storage.data()), kept);
      machine().accesses.copy_written(from.bytes, to.bytes.begin);
    }
    c10::Storage target = storage;
    target.set_data_ptr_noswap(std::move(fresh));
    target.set_nbytes(size);
  }
};

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new StandinHooks); }

}  // namespace ringside::standin
