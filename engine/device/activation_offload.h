// Activations that wait for the backward in pinned host memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/device/device_event.h"

namespace ringside::engine {

// The tensors of one forward, layer by layer, taken back in reverse order. A layer's tensors travel
// to the host while the next layer computes, and come back while the layer after it (the one before
// in the backward) computes. Those of the last layer stay on the device, because the backward
// begins with them. So the device holds the tensors of two layers at most, however many there are.
// Copies run on a side stream and are ordered by events. On a CPU device nothing is copied: the
// tensors stay as they are.
// Thread safety: none.
class ActivationOffload {
 public:
  // stream: of make_side_stream() for the tensors' device.
  explicit ActivationOffload(const std::optional<c10::Stream>& stream) : stream_(stream) {}

  // Takes over a layer's tensors, which must not be changed from now on, and starts the transfer of
  // the previous layer's. Undefined tensors stay undefined, empty ones stay. Returns the ticket for
  // take().
  // Blocks: never.
  std::size_t put(std::vector<at::Tensor> tensors);

  // Gives a layer's tensors back on the device, with their values and strides, and starts the
  // transfer of the layer before. A second call with the same ticket returns nothing.
  // Blocks: never; the current stream waits for the transfer.
  // Throws: std::out_of_range on a ticket that put() did not return.
  std::vector<at::Tensor> take(std::size_t ticket);

 private:
  enum class Place { kDevice, kHost, kArriving };
  // One layer. A tensor on the host is flat; `sizes` and `strides` are those it had.
  struct Entry {
    std::vector<at::Tensor> tensors;
    std::vector<std::vector<int64_t>> sizes, strides;
    std::vector<at::Tensor> host;  // while they come back: the memory that is read
    Place place = Place::kDevice;
    std::optional<DeviceEvent> arrived;
  };
  void start_to_host(Entry& entry);
  void start_to_device(Entry& entry);

  std::optional<c10::Stream> stream_;
  std::vector<Entry> entries_;
};

}  // namespace ringside::engine
