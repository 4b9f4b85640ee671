#include "tests/support/standin/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace ringside::standin {
namespace {

constexpr size_t kAllDeviceBytes = kBytesPerDevice * kDevices;
constexpr size_t kDeviceAlignment = 512;
constexpr size_t kReturnedToSystem = size_t{1} << 20;

char* reserve(int protection) {
  void* p = mmap(nullptr, kAllDeviceBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  if (p == MAP_FAILED) {
    throw std::runtime_error("stand-in: cannot reserve " + std::to_string(kAllDeviceBytes) +
                             " bytes of address space");
  }
  return static_cast<char*>(p);
}

}  // namespace

DeviceMemory::DeviceMemory()
    : device_(reserve(PROT_NONE)),
      kernel_(reserve(PROT_READ | PROT_WRITE)),
      heaps_(kDevices, RangeHeap(kBytesPerDevice, kDeviceAlignment)) {}

bool DeviceMemory::owns(const void* p) const {
  return p >= device_ && p < device_ + kAllDeviceBytes;
}

int DeviceMemory::device_of(const void* p) const {
  return static_cast<int>((static_cast<const char*>(p) - device_) / kBytesPerDevice);
}

void* DeviceMemory::kernel_address(const void* p) const {
  return p == nullptr ? nullptr : kernel_ + (static_cast<const char*>(p) - device_);
}

size_t DeviceMemory::rounded(size_t size) const { return heaps_[0].rounded(size); }

void* DeviceMemory::allocate(int device, size_t size) {
  const size_t bytes = rounded(size);
  void* p = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto offset = heaps_.at(device).allocate(bytes);
    if (!offset) {
      throw std::runtime_error("stand-in device " + std::to_string(device) + ": no room for " +
                               std::to_string(size) + " bytes; " +
                               std::to_string(use_[device].current_bytes) + " are in use");
    }
    p = device_ + device * kBytesPerDevice + *offset;
    sizes_[p] = bytes;
    MemoryUse& use = use_[device];
    use.current_bytes += static_cast<int64_t>(bytes);
    use.peak_bytes = std::max(use.peak_bytes, use.current_bytes);
    ++use.allocations;
  }
  return p;
}

void DeviceMemory::poison(void* p, size_t size) {
  std::memset(kernel_address(p), 0xFF, rounded(size));
}

void DeviceMemory::free(void* p) {
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.find(p);
  if (found == sizes_.end()) {
    throw std::runtime_error("stand-in: freed memory that is not allocated");
  }
  const size_t bytes = found->second;
  const int device = device_of(p);
  if (bytes >= kReturnedToSystem) {
    // Of whole pages inside the block; a neighbour may share the first and the last.
    constexpr uintptr_t kPage = 4096;
    const auto begin = (reinterpret_cast<uintptr_t>(kernel_address(p)) + kPage - 1) / kPage * kPage;
    const auto end = (reinterpret_cast<uintptr_t>(kernel_address(p)) + bytes) / kPage * kPage;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  use_[device].current_bytes -= static_cast<int64_t>(bytes);
  heaps_[device].free(static_cast<char*>(p) - device_ - device * kBytesPerDevice, bytes);
  sizes_.erase(found);
}

MemoryUse DeviceMemory::use(int device) const {
  const std::lock_guard lock(mutex_);
  return use_[device];
}

void DeviceMemory::reset_peak(int device) {
  const std::lock_guard lock(mutex_);
  use_[device].peak_bytes = use_[device].current_bytes;
  use_[device].allocations = 0;
}

}  // namespace ringside::standin
