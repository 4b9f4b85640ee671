// Receiver of one version's tensors: requests chunks, verifies them and assembles a snapshot.
//
// The snapshot is released only when every tensor is verified. If the bytes of the manifest's base
// version are given, only changes are fetched; the base is copied, never written to. A tensor is
// hashed chunk by chunk while the chunk is in cache. Pure state without sockets.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "rollout_bridge/base/content_hash.h"
#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/weights/delta_codec.h"
#include "rollout_bridge/weights/snapshot.h"
#include "rollout_bridge/weights/weight_memory.h"

namespace ringside::bridge {

class WeightReceiver {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    uint64_t chunk_bytes = 4 << 20;
    std::size_t window = 4;  // chunks requested and not received
    std::chrono::milliseconds chunk_timeout{5000};
    int max_tries = 3;    // fetches of one tensor before staging fails
    bool changes = true;  // false: fetch changed tensors dense
  };

  // The manifest must have passed validate(). `base`: verified bytes of an earlier version, or
  // null. Every tensor is fetched dense when `base` is not manifest.base_version of this run and
  // term with the same tensors. `memory` holds the tensors; passed from version to version, it
  // keeps released memory up to the size of this one.
  WeightReceiver(Manifest manifest, Options options,
                 std::shared_ptr<const WeightSnapshot> base = nullptr, WeightMemory memory = {});

  const Manifest& manifest() const { return manifest_; }

  // Applies the payloads of all overwrites, in tensor order, that came with the offer. Call it
  // before the first requests(). Does nothing without the base, with `changes` off, or when the
  // total length differs from the manifest's: the payloads are then requested.
  void apply_offered(Frame payloads);

  // Chunks to request now, up to `window` outstanding ones. Repeats requests that were not answered
  // within chunk_timeout. Consecutive small overwrite payloads are requested as one chunk.
  std::vector<ChunkBody> requests(Clock::time_point now);
  // Returns a request that could not be sent; it is sent next.
  void unsent(const ChunkBody& request);
  // Returns all requests without an answer; another transport takes them over.
  void unsend_all();

  // Accepts a chunk; ignores one that was not requested. Checks the hash of a tensor when its last
  // chunk arrives. On a mismatch the tensor is fetched again. A payload that cannot be applied, or
  // whose result has a wrong hash, is dropped and its tensor is fetched dense.
  // Errors: kChecksum after max_tries failed fetches of one tensor.
  Status accept(const ChunkBody& chunk, Frame data);

  bool complete() const { return verified_ == manifest_.tensors.size(); }
  uint64_t mismatches() const { return mismatches_; }  // hash mismatches
  bool builds_on_base() const { return base_ != nullptr; }
  uint64_t refetched() const { return refetched_; }  // tensors fetched dense after a bad overwrite
  // The staged weights with a dense manifest. Unchanged tensors share the base's bytes. Leaves the
  // receiver empty.
  // Throws: std::logic_error unless complete().
  std::shared_ptr<const WeightSnapshot> take();

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // tensor, offset
  struct Tensor {
    // Being fetched; not zeroed, allocated at the first request.
    std::shared_ptr<std::byte[]> bytes;
    Buffer verified;
    uint64_t missing = 0;
    uint64_t hashed = 0;          // leading bytes that `hash` covers
    std::optional<Hash128> hash;  // while being fetched
    int tries = 0;
    bool overwrite = false;  // `bytes` is a payload
  };

  void enqueue(uint64_t tensor);
  void enqueue_payloads();
  void verify(Tensor& tensor, Buffer bytes);
  Status place(const ChunkBody& chunk, Frame data);
  Status finish(uint64_t tensor);
  void finish_overwrite(uint64_t tensor, std::span<const std::byte> payload);
  void finish_overwrites(uint64_t first, uint64_t end, Frame payloads);

  Manifest manifest_;
  Options options_;
  std::shared_ptr<const WeightSnapshot> base_;  // null: all dense
  WeightMemory memory_;
  DeltaScratch scratch_;
  std::vector<Tensor> tensors_;
  std::deque<ChunkBody> waiting_;
  std::map<Key, std::pair<ChunkBody, Clock::time_point>> under_way_;
  std::size_t next_tensor_ = 0;  // first tensor never enqueued
  std::size_t verified_ = 0;
  uint64_t mismatches_ = 0;
  uint64_t refetched_ = 0;
};

}  // namespace ringside::bridge
