// Tensors of the host in memory that the execution model watches.
#pragma once

#include <ATen/ATen.h>

#include <memory>

namespace ringside::cuda_host {

// While one lives, torch's CPU tensors lie in Buffers, each of exactly its own bytes.
// Thread safety: none; one at a time.
class DeviceTensors {
 public:
  // From now on, and until it ends.
  DeviceTensors();
  ~DeviceTensors();
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;

  // Calls f. Tensors that it makes hold nothing until a kernel has written them.
  template <class F>
  auto launching(F f) {
    const Unwritten now(*this);
    return f();
  }

 private:
  struct Unwritten {
    explicit Unwritten(DeviceTensors& of) : of(of) { of.set_initialised(false); }
    ~Unwritten() { of.set_initialised(true); }
    DeviceTensors& of;
  };
  class Allocator;

  void set_initialised(bool value);

  std::unique_ptr<Allocator> allocator_;
  c10::Allocator* before_;
};

}  // namespace ringside::cuda_host
