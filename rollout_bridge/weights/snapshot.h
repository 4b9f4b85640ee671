// Weight snapshots: the tensors of a version with hashes, manifest and delta.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// A version as a delta to another: a manifest with the same tensors and root hash as the dense one,
// and a payload for each "overwrite" tensor (empty for the others).
struct WeightDelta {
  Manifest manifest;  // encoding "overwrite"
  std::vector<Buffer> payloads;
};

class SharedBlock;

// A manifest and its bytes, tensor by tensor in the manifest's order. Immutable once shared: the
// bytes must not change while any endpoint holds it.
struct WeightSnapshot {
  Manifest manifest;  // encoding "dense"
  std::vector<Buffer> tensors;
  std::shared_ptr<const WeightDelta> delta;  // delta that gives the same bytes; may be null
  // Shared memory with the same bytes, tensor after tensor, for workers on this machine; may be
  // null.
  std::shared_ptr<const SharedBlock> shared;
};

// A tensor's bytes in memory (row-major) with its name, safetensors dtype and shape.
struct NamedBuffer {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  Buffer data;
};

// XXH3-128 of the bytes as 32 lower-case hex digits, high half first. Thread-safe.
std::string tensor_hash(std::span<const std::byte> bytes);

// XXH3-128 of a text with one line per tensor, in order: "name TAB dtype TAB d0,d1,... TAB hash
// LF". It depends on names, order and content, not on the version.
std::string root_hash(const std::vector<TensorEntry>& tensors);

// Hashes every tensor and builds the dense manifest, offsets in the given order. Shares the
// buffers. `shared`, if not null, is the block that holds the tensors in order and without gaps.
// Throws: std::invalid_argument on an unknown dtype, a shape that does not match the bytes, an
// empty or repeated name, a negative version or term, or a tensor outside the block.
std::shared_ptr<const WeightSnapshot> make_snapshot(
    std::string run_id, int64_t trainer_term, int64_t version, std::vector<NamedBuffer> tensors,
    std::shared_ptr<const SharedBlock> shared = nullptr);

// Root hash of installed bytes, computed from the bytes. COMMITTED reports it.
// Throws: as make_snapshot does.
std::string root_hash_of(const std::vector<NamedBuffer>& tensors);

// Delta from `base` to `next`, tensor by tensor: "same", "overwrite" where that is smaller,
// otherwise "dense". Compares all bytes. Null when every tensor would be dense, or when the two do
// not hold the same tensors (names, dtypes, shapes) of one run and term in rising versions.
std::shared_ptr<const WeightDelta> make_delta(const WeightSnapshot& base,
                                              const WeightSnapshot& next);

// The dense form of a manifest: without encodings and payloads.
Manifest dense_manifest(Manifest manifest);

// Adds to each published version its delta to the version before, except for anchors, which stay
// dense. Keeps the newest version as the next base: one copy of the weights in host memory, shared
// with the trainer's endpoint.
// Thread safety: none.
class DeltaChain {
 public:
  struct Options {
    bool deltas = true;       // false: every version is dense
    int64_t full_every = 16;  // every so many versions one is dense (an anchor); >= 1
  };
  // Throws std::invalid_argument on full_every below 1.
  explicit DeltaChain(Options options);
  // Returns the snapshot, with its delta unless it is an anchor.
  // Blocks: for one pass over both versions' bytes and the compression of the changes.
  std::shared_ptr<const WeightSnapshot> extend(std::shared_ptr<const WeightSnapshot> next);

 private:
  Options options_;
  int64_t since_full_ = 0;
  std::shared_ptr<const WeightSnapshot> base_;
};

// Checks a manifest by itself: dtypes, shapes, offsets without gaps, form of the hashes, unique
// names, root hash, encodings (a payload is shorter than its tensor; no more changes than
// elements), sums against the limits.
Status validate(const Manifest& manifest, const Limits& limits = {});

}  // namespace ringside::bridge
