// Hashes, manifests and snapshots of weights: what makes a set of tensors one named thing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// A tensor's bytes with its name, safetensors dtype and shape, as they lie in memory (row-major).
struct NamedBuffer {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  Buffer data;
};

// XXH3-128 of the bytes as 32 lower-case hex digits, high half first. Thread-safe.
std::string tensor_hash(std::span<const std::byte> bytes);

// XXH3-128 of the text that holds, per tensor in order, "name TAB dtype TAB d0,d1,... TAB hash LF".
// It depends on names, order and content, not on the version.
std::string root_hash(const std::vector<TensorEntry>& tensors);

// Hashes every tensor and builds the manifest (dense, offsets in the given order). Shares the
// buffers. `shared`, if any, is the block they lie in, in order and without gaps. Throws
// std::invalid_argument on an unknown dtype, a shape that does not make the bytes, an empty or
// repeated name, a negative version or term, or a tensor elsewhere than in the block.
std::shared_ptr<const WeightSnapshot> make_snapshot(
    std::string run_id, int64_t trainer_term, int64_t version, std::vector<NamedBuffer> tensors,
    std::shared_ptr<const SharedBlock> shared = nullptr);

// The root hash of bytes that are installed somewhere: hashes them anew. For COMMITTED.
// Throws like make_snapshot.
std::string root_hash_of(const std::vector<NamedBuffer>& tensors);

// What changed from `base` to `next`, tensor by tensor: "same", "overwrite" where that is smaller,
// otherwise "dense". Null when the two do not hold the same tensors (names, dtypes, shapes) of one
// run and term in rising versions, or when every tensor would be dense. Compares all bytes.
std::shared_ptr<const WeightDelta> make_delta(const WeightSnapshot& base,
                                              const WeightSnapshot& next);

// The dense form of a manifest: what it says about the bytes, without how to come by them.
Manifest dense_manifest(Manifest manifest);

// Gives each published version the delta to the one before, except for anchors. Keeps the newest
// version alive as the next one's base, which is one copy of the weights in host memory (shared
// with the trainer's endpoint, which serves it anyway). Not thread-safe.
class DeltaChain {
 public:
  struct Options {
    bool deltas = true;       // false: everything is dense
    int64_t full_every = 16;  // every so many versions one is dense for everybody; >= 1
  };
  // Throws std::invalid_argument on full_every below 1.
  explicit DeltaChain(Options options);
  // The snapshot, with its delta where it is to have one. Costs a pass over both versions' bytes
  // and the compression of what differs. Blocks meanwhile.
  std::shared_ptr<const WeightSnapshot> extend(std::shared_ptr<const WeightSnapshot> next);

 private:
  Options options_;
  int64_t since_full_ = 0;
  std::shared_ptr<const WeightSnapshot> base_;
};

// Checks a manifest by itself: dtypes, shapes, offsets without gaps, hash forms, unique names, root
// hash, encodings (a payload shorter than its tensor, no more changes than elements), sums against
// the limits.
Status validate(const Manifest& manifest, const Limits& limits = {});

}  // namespace ringside::bridge
