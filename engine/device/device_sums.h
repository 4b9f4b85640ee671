// Named fp64 figures of an optimizer step that stay on the device until one copy brings all of them
// to the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace ringside::engine {

// Figures on the host, by name.
using HostSums = std::map<std::string, std::vector<double>>;

// All tensors given to one object are on one device. Nothing here waits for the device but fetch().
// Thread safety: none.
class DeviceSums {
 public:
  // Adds element by element to the figures `name`; the first call defines them.
  // Shapes: 0-D or 1-D, of any dtype, always the same size for a name.
  // Throws: c10::Error on another size.
  void add(const std::string& name, const at::Tensor& values);
  // Takes the maximum element by element instead.
  // Shapes, throws: as add().
  void maximise(const std::string& name, const at::Tensor& values);

  // Copies every figure to the host in one transfer.
  // Blocks: until the device has computed them. One host sync, none on the CPU.
  HostSums fetch() const;

 private:
  std::map<std::string, at::Tensor> figures_;  // fp64 [k]
};

}  // namespace ringside::engine
