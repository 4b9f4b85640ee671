// Hashes, manifests and snapshots of weights: what makes a set of tensors one named thing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rollout_bridge/schema.h"

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
// buffers. Throws std::invalid_argument on an unknown dtype, a shape that does not make the bytes,
// an empty or repeated name, or a negative version or epoch.
std::shared_ptr<const WeightSnapshot> make_snapshot(std::string run_id, int64_t run_epoch,
                                                    int64_t version,
                                                    std::vector<NamedBuffer> tensors);

// The root hash of bytes that are installed somewhere: hashes them anew. For COMMITTED.
// Throws like make_snapshot.
std::string root_hash_of(const std::vector<NamedBuffer>& tensors);

// Checks a manifest by itself: dtypes, shapes, offsets without gaps, hash forms, unique names, root
// hash, sums against the limits.
Status validate(const Manifest& manifest, const Limits& limits = {});

}  // namespace ringside::bridge
