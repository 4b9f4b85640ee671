#include "tests/support/standin/allocators.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>

#include "tests/support/standin/machine.h"
#include "tests/support/standin/streams.h"

namespace ringside::standin {
namespace {

void free_device(void* p) {
  if (p != nullptr) {
    machine().accesses.remove_block(reinterpret_cast<uintptr_t>(p));
    machine().memory.free(p);
  }
}

void free_pinned(void* p) {
  if (p != nullptr) {
    machine().accesses.remove_block(reinterpret_cast<uintptr_t>(p));
    machine().pinned.free(p);
  }
}

class StandinAllocator final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t size) override {
    const int device = current_device();
    const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (size == 0) {
      return {nullptr, nullptr, &free_device, where};
    }
    void* p = machine().memory.allocate(device, size);
    const Bytes block = bytes_at(p, machine().memory.rounded(size));
    // A storage can be released while a transfer that its stream has waited for has not moved its
    // bytes yet. They must not arrive in the next owner's data.
    machine().in_flight.complete_conflicts({}, {Use{block}});
    machine().memory.poison(p, size);
    machine().accesses.add_device_block(block, current_stream(device));
    return {p, p, &free_device, where};
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_device; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(machine().memory.kernel_address(to), machine().memory.kernel_address(from), size);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    machine().accesses.record_use(reinterpret_cast<uintptr_t>(data.get()),
                                  {stream.device_index(), stream.id()});
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryUse use = machine().memory.use(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      (*bytes)[0].current = use.current_bytes;
      (*bytes)[0].peak = use.peak_bytes;
    }
    stats.allocation[0].allocated = use.allocations;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { machine().memory.reset_peak(device); }
};

class StandinPinnedAllocator final : public at::HostAllocator {
 public:
  at::DataPtr allocate(size_t size) override {
    if (size == 0) {
      return {nullptr, nullptr, &free_pinned, at::Device(at::kCPU)};
    }
    void* p = machine().pinned.allocate(size);
    machine().accesses.add_pinned_block(bytes_at(p, size));
    return {p, p, &free_pinned, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }

  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

StandinAllocator& the_device_allocator() {
  static auto* const allocator = new StandinAllocator;
  return *allocator;
}

StandinPinnedAllocator& the_pinned_allocator() {
  static auto* const allocator = new StandinPinnedAllocator;
  return *allocator;
}

}  // namespace

c10::Allocator& device_allocator() { return the_device_allocator(); }
c10::Allocator& pinned_allocator() { return the_pinned_allocator(); }

void register_allocators() {
  c10::SetAllocator(c10::kPrivateUse1, &the_device_allocator());
  at::setHostAllocator(at::kPrivateUse1, &the_pinned_allocator());
}

}  // namespace ringside::standin
