#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "rollout_bridge/base/content_hash.h"
#include "rollout_bridge/weights/delta_codec.h"
#include "tests/fuzz/entries.h"

namespace ringside::bridge::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

struct Shape {
  std::size_t element_bytes = 1;
  std::size_t gap_bytes = 1;
  std::size_t elements = 0;
  uint64_t changed = 0;
};

bool all_are(const Bytes& bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == value; });
}

// On an all-zero and an all-one base an element that was not written differs in every byte, one
// that was written in none.
std::size_t written(const Bytes& on_zeros, const Bytes& on_ones, std::size_t element_bytes) {
  std::size_t count = 0;
  for (std::size_t at = 0; at + element_bytes <= on_zeros.size(); at += element_bytes) {
    if (std::memcmp(&on_zeros[at], &on_ones[at], element_bytes) == 0) {
      ++count;
    }
  }
  return count;
}

void check_encoder(const Bytes& next, std::size_t element_bytes) {
  Bytes base(next.size());
  const auto changes = encode_overwrite(base, next, element_bytes);
  if (!changes) {
    return;  // the tensor itself is shorter
  }
  require(changes->changed > 0 || base == next);
  if (changes->changed == 0) {
    return;
  }
  require(apply_overwrite(changes->payload, changes->changed, element_bytes, base).ok() &&
          base == next);
}

// Written beside its base a tensor is the same, and so is its hash.
void check_copy(std::span<const std::byte> payload, const Shape& shape, const Bytes& expected) {
  const Bytes base(expected.size());
  Bytes made(expected.size(), std::byte{0x5a});
  Hash128 hash;
  const Status status =
      copy_overwritten(payload, shape.changed, shape.element_bytes, base, made, hash);
  require(status.ok() && made == expected && hash.hex() == hash128(expected));
}

void check_payload(std::span<const std::byte> payload, const Shape& shape) {
  const std::size_t bytes = shape.elements * shape.element_bytes;
  Bytes on_zeros(bytes);
  Bytes on_ones(bytes, std::byte{0xff});
  const bool taken = apply_overwrite(payload, shape.changed, shape.element_bytes, on_zeros).ok();
  require(taken == apply_overwrite(payload, shape.changed, shape.element_bytes, on_ones).ok());
  if (!taken) {
    require(all_are(on_zeros, std::byte{0}) && all_are(on_ones, std::byte{0xff}));
    return;
  }
  require(written(on_zeros, on_ones, shape.element_bytes) == shape.changed);
  Bytes again = on_zeros;
  require(apply_overwrite(payload, shape.changed, shape.element_bytes, again).ok());
  require(again == on_zeros);
  check_copy(payload, shape, on_zeros);
  check_encoder(on_zeros, shape.element_bytes);
}

// A payload whose planes hold `content`, cut into pieces of `changed` bytes; the last may be short.
Bytes packed(std::span<const uint8_t> content, const Shape& shape) {
  const std::size_t planes = shape.gap_bytes + shape.element_bytes;
  Bytes out(1 + planes * sizeof(uint32_t));
  out[0] = static_cast<std::byte>(shape.gap_bytes);
  for (std::size_t k = 0; k < planes; ++k) {
    const auto piece = content.first(std::min<std::size_t>(content.size(), shape.changed));
    content = content.subspan(piece.size());
    Bytes frame(ZSTD_compressBound(piece.size()));
    const std::size_t size =
        ZSTD_compress(frame.data(), frame.size(), piece.data(), piece.size(), 1);
    if (ZSTD_isError(size)) {
      throw std::runtime_error(ZSTD_getErrorName(size));
    }
    const auto length = static_cast<uint32_t>(size);
    std::memcpy(&out[1 + k * sizeof length], &length, sizeof length);
    out.insert(out.end(), frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size));
  }
  return out;
}

}  // namespace

void delta(std::span<const uint8_t> bytes) {
  constexpr std::size_t kHead = 4;
  if (bytes.size() < kHead) {
    return;
  }
  Shape shape;
  shape.element_bytes = std::size_t{1} << (bytes[0] & 3);
  shape.gap_bytes = std::size_t{1} << (bytes[0] >> 2 & 3);  // 8 is none
  shape.elements = bytes[1] + (std::size_t{bytes[2]} & 7) * 256;
  shape.changed = bytes[3];
  const auto rest = bytes.subspan(kHead);
  check_payload(packed(rest, shape), shape);
  if ((bytes[0] & 0x10) != 0) {
    shape.changed += uint64_t{1} << (bytes[2] >> 3);
  }
  check_payload(std::as_bytes(rest), shape);
}

}  // namespace ringside::bridge::fuzz
