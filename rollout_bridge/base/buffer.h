// Read-only byte buffer with shared ownership, used for frames and tensors.
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace ringside::bridge {

static_assert(std::endian::native == std::endian::little, "buffers go on the wire as they lie");

struct Buffer {
  std::shared_ptr<const void> owner;  // keeps `bytes` alive; may be shared with a tensor's storage
  std::span<const std::byte> bytes;

  // Takes over a vector of trivially copyable elements.
  template <class T>
  static Buffer own(std::vector<T> values) {
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    return Buffer{owner, std::as_bytes(std::span(*owner))};
  }
};

}  // namespace ringside::bridge
