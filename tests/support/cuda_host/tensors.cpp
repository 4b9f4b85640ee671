#include "tests/support/cuda_host/tensors.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "tests/support/cuda_host/memory.h"

namespace ringside::cuda_host {

class DeviceTensors::Allocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* buffer = new Buffer("tensor " + std::to_string(++count_), bytes, initialised);
    return {buffer->data(), buffer, free_buffer, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  bool initialised = true;

 private:
  static void free_buffer(void* buffer) { delete static_cast<Buffer*>(buffer); }

  int64_t count_ = 0;
};

DeviceTensors::DeviceTensors()
    : allocator_(std::make_unique<Allocator>()), before_(c10::GetCPUAllocator()) {
  c10::SetCPUAllocator(allocator_.get());
}

DeviceTensors::~DeviceTensors() { c10::SetCPUAllocator(before_); }

void DeviceTensors::set_initialised(bool value) { allocator_->initialised = value; }

}  // namespace ringside::cuda_host
