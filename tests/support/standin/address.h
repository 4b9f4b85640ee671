// Devices, address ranges and streams of the stand-in accelerator. No torch.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ringside::standin {

// Fixed, because autograd starts one thread per device at the first backward.
constexpr int kDevices = 8;
// Address space, not memory.
constexpr size_t kBytesPerDevice = size_t{1} << 34;
constexpr size_t kPinnedBytes = size_t{1} << 34;

struct Bytes {
  uintptr_t begin = 0, end = 0;

  bool empty() const { return begin >= end; }
  size_t size() const { return empty() ? 0 : end - begin; }
  // Whether a byte is in both.
  bool overlaps(Bytes other) const { return begin < other.end && other.begin < end; }
  // Whether all bytes of the other are in this.
  bool contains(Bytes other) const { return begin <= other.begin && other.end <= end; }
};

// `size` bytes from p on.
inline Bytes bytes_at(const void* p, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(p);
  return {begin, begin + size};
}

// One argument of a kernel: the addresses from its first to its last element. A view with gaps is
// not dense; its range covers bytes that the kernel does not touch.
struct Use {
  Bytes bytes;
  size_t element = 1;
  bool dense = true;
};

struct StreamKey {
  int device = 0;
  int64_t id = 0;  // 0 = the default stream

  auto operator<=>(const StreamKey&) const = default;
};

// "standin:0 default stream", "standin:0 stream 3".
inline std::string to_string(StreamKey stream) {
  return "standin:" + std::to_string(stream.device) +
         (stream.id == 0 ? " default stream" : " stream " + std::to_string(stream.id));
}

}  // namespace ringside::standin
