// One tensor as the elements that changed since an earlier version: positions and new values.
// Values, not differences: applying a payload twice gives the same bytes, and nothing drifts.
//
// Reinforcement learning at usual learning rates leaves about 99 % of bf16 weights as they were
// from one step to the next (PULSE, arXiv 2602.03839). What counts as changed is the bytes, so
// -0.0, NaN payloads and every dtype survive bit for bit.
//
// Payload: u8 G in {1, 2, 4}; G + E times u32, the lengths of what follows; G + E zstd frames, each
// of `changed` bytes. Frame g < G holds byte g of every gap, frame G + e byte e of every new
// element of E bytes (both little-endian). A gap is the number of unchanged elements since the
// changed one before, or since the start. Bytes of one significance lie together because their
// statistics differ: a bf16's sign and exponent shrink to a third, its mantissa not at all.
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

// What calls leave for the next: zstd's contexts and an unpacked plane, which cost more than a
// small tensor's work. Grows to what the largest call needed. Not thread-safe.
class DeltaScratch {
 public:
  struct Impl;
  DeltaScratch();
  ~DeltaScratch();
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// What turns `base` into `next`, compared in elements of `element_bytes` (1, 2, 4 or 8); nullopt
// when sending `next` itself is no longer than the payload, or so much changed (more than 3/4) that
// it is not worth trying. Uses up to (element_bytes + 5) bytes of memory a changed element. Throws
// std::invalid_argument when the lengths differ or are no multiple of element_bytes. Pure,
// thread-safe.
std::optional<Overwrite> encode_overwrite(std::span<const std::byte> base,
                                          std::span<const std::byte> next,
                                          std::size_t element_bytes,
                                          DeltaScratch* scratch = nullptr);

// Writes the `changed` new elements of a payload into `target`, which holds the base. The payload
// may be hostile: nothing beyond (4 + element_bytes) x changed bytes is allocated, `changed` above
// the elements of `target` is refused, and on any error `target` is as it was. Errors: kMalformed.
// Pure, thread-safe for different targets.
Status apply_overwrite(std::span<const std::byte> payload, uint64_t changed,
                       std::size_t element_bytes, std::span<std::byte> target,
                       DeltaScratch* scratch = nullptr);

// The same beside the base: fills `target`, as long as `base`, with the base and the new elements,
// and feeds what it wrote to `hash`, block by block while it is in cache. After an error `target`
// and `hash` hold anything. Throws std::invalid_argument when the lengths differ.
Status copy_overwritten(std::span<const std::byte> payload, uint64_t changed,
                        std::size_t element_bytes, std::span<const std::byte> base,
                        std::span<std::byte> target, Hash128& hash,
                        DeltaScratch* scratch = nullptr);

}  // namespace ringside::bridge
