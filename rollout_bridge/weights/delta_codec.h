// Delta codec for one tensor: positions and new values of the elements that changed since an
// earlier version.
//
// The payload holds new values, not differences. Applying it twice gives the same bytes, and errors
// do not accumulate. Elements are compared by their bytes, so -0.0, NaN payloads and every dtype
// are preserved bit for bit.
//
// Payload: u8 G in {1, 2, 4}; G + E lengths (u32); G + E zstd frames, each of `changed` bytes
// uncompressed. Frame g < G holds byte g of every gap. Frame G + e holds byte e of every new
// element of E bytes. Both are little-endian. A gap is the number of unchanged elements since the
// previous changed one, or since the start. Bytes of one significance share a frame because their
// statistics differ: a bf16's sign and exponent compress to a third, its mantissa not at all.
//
// Source: PULSE (arXiv 2602.03839): at usual RL learning rates about 99 % of bf16 weights do not
// change from one step to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rollout_bridge/base/content_hash.h"
#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

struct Overwrite {
  uint64_t changed = 0;            // elements
  std::vector<std::byte> payload;  // empty exactly when nothing changed
};

// Reusable scratch memory: zstd contexts and an unpacked frame, which cost more than the work on a
// small tensor. Grows to the size of the largest call.
// Thread safety: none.
class DeltaScratch {
 public:
  struct Impl;
  // Empty. Throws: std::bad_alloc.
  DeltaScratch();
  ~DeltaScratch();
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// The overwrite that turns `base` into `next`, compared in elements of `element_bytes` (1, 2, 4 or
// 8). nullopt when `next` itself is not longer than the payload, or when more than 3/4 of the
// elements changed. Needs up to (element_bytes + 5) bytes of memory a changed element.
// Throws: std::invalid_argument when the lengths differ or are not multiples of element_bytes, or
// for another element_bytes.
// Thread safety: pure.
std::optional<Overwrite> encode_overwrite(std::span<const std::byte> base,
                                          std::span<const std::byte> next,
                                          std::size_t element_bytes,
                                          DeltaScratch* scratch = nullptr);

// Writes the `changed` new elements of a payload into `target`, which holds the base. The payload
// is untrusted: at most (4 + element_bytes) x changed bytes are allocated, and `changed` above the
// number of elements is refused. On any error `target` is unchanged.
// Errors: kMalformed.
// Thread safety: pure, for different targets.
Status apply_overwrite(std::span<const std::byte> payload, uint64_t changed,
                       std::size_t element_bytes, std::span<std::byte> target,
                       DeltaScratch* scratch = nullptr);

// apply_overwrite() into another buffer: fills `target` with `base` and the new elements. Feeds the
// written bytes to `hash`, block by block while they are in cache. After an error the content of
// `target` and `hash` is undefined.
// Shapes: `target` is as long as `base`.
// Throws: std::invalid_argument when the lengths differ.
// Errors: kMalformed.
Status copy_overwritten(std::span<const std::byte> payload, uint64_t changed,
                        std::size_t element_bytes, std::span<const std::byte> base,
                        std::span<std::byte> target, Hash128& hash,
                        DeltaScratch* scratch = nullptr);

}  // namespace ringside::bridge
