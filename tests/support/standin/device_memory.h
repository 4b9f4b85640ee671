// Device memory: two mappings of equal size. Tensors carry addresses of the first, which no code
// can access; kernels add a constant and use the second, where the bytes are. Protection never
// changes, so threads cannot race on it. No torch.
//
// Thread safety: any thread.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "tests/support/standin/address.h"
#include "tests/support/standin/range_heap.h"

namespace ringside::standin {

struct MemoryUse {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t allocations = 0;  // since the last reset
};

class DeviceMemory {
 public:
  // Throws: std::runtime_error when the system gives no address space.
  DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Whether p is a device address, allocated or not.
  bool owns(const void* p) const;
  // The device of an address that owns() accepts.
  int device_of(const void* p) const;
  // The address under which a kernel finds the byte at device address p; null for null.
  void* kernel_address(const void* p) const;

  // At least `size` bytes. The memory is not initialised.
  // Throws: std::runtime_error when the device's address space is used up.
  void* allocate(int device, size_t size);
  // Fills an allocation of `size` bytes with 0xFF: NaN in every floating-point format.
  void poison(void* p, size_t size);
  // Frees an allocation. Of 1 MiB and more, the system gets the pages back.
  // Throws: std::runtime_error unless p is an allocation that is not freed yet.
  void free(void* p);
  // `size` rounded up to what an allocation takes, a multiple of 512 bytes.
  size_t rounded(size_t size) const;

  // Bytes are those that allocations take.
  MemoryUse use(int device) const;
  // The peak becomes the bytes in use; allocations count from 0.
  void reset_peak(int device);

 private:
  mutable std::mutex mutex_;
  char* device_ = nullptr;
  char* kernel_ = nullptr;
  std::vector<RangeHeap> heaps_;
  MemoryUse use_[kDevices];
  std::map<void*, size_t> sizes_;
};

}  // namespace ringside::standin
