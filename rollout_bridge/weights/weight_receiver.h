// Pulls the tensors of one manifest together, verifies them, and only then gives them out: no
// torn set of weights can leave here. With the bytes of the manifest's base version at hand it
// takes what changed only; those bytes are copied, never written to. A tensor is hashed piece by
// piece as it comes, while the piece is in cache. Pure state without sockets; not thread-safe.
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
#include "rollout_bridge/weights/weight_memory.h"

namespace ringside::bridge {

class WeightReceiver {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    uint64_t chunk_bytes = 4 << 20;
    std::size_t window = 4;  // chunks asked for and not yet here
    std::chrono::milliseconds chunk_timeout{5000};
    int max_tries = 3;    // fetches of one tensor before staging fails
    bool changes = true;  // false: what differs from the base is fetched whole
  };

  // The manifest must have passed validate(). `base`: verified bytes of an earlier version, or
  // null. If they are not those of manifest.base_version, of this run and term and with these
  // tensors, every tensor is fetched dense. `memory` is where the tensors lie: handed from version
  // to version it keeps what an old one leaves, up to the size of this one.
  WeightReceiver(Manifest manifest, Options options,
                 std::shared_ptr<const WeightSnapshot> base = nullptr, WeightMemory memory = {});

  const Manifest& manifest() const { return manifest_; }

  // Takes the payloads of all changes, in tensor order, that came with the offer. Before the first
  // requests(). Does nothing without the base or with `changes` off, or when they are not as long
  // as the manifest says: what is then missing is asked for.
  void apply_offered(Frame payloads);

  // Chunks to ask for now, so that `window` of them are under way. Those unanswered for
  // chunk_timeout are asked for again. Payloads of changes that are small together are one chunk.
  std::vector<ChunkBody> requests(Clock::time_point now);
  // A request could not be sent: it is next again.
  void unsent(const ChunkBody& request);

  // Takes a chunk. One that nobody waits for is ignored. When it completes a tensor, the tensor's
  // hash is checked; on a mismatch the tensor is fetched anew, and kChecksum is returned once
  // max_tries fetches have failed. A payload that cannot be applied, or makes bytes with another
  // hash, is dropped and its tensor fetched dense.
  Status accept(const ChunkBody& chunk, Frame data);

  bool complete() const { return verified_ == manifest_.tensors.size(); }
  uint64_t mismatches() const { return mismatches_; }  // tensors whose hash was wrong
  bool builds_on_base() const { return base_ != nullptr; }
  uint64_t refetched() const { return refetched_; }  // tensors whose overwrite was wrong
  // The staged weights under a dense manifest; tensors without a change share the base's bytes.
  // Throws std::logic_error unless complete(). Leaves the receiver empty.
  std::shared_ptr<const WeightSnapshot> take();

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // tensor, offset
  struct Tensor {
    std::shared_ptr<std::byte[]> bytes;  // being fetched; not zeroed, taken at the first request
    Buffer verified;
    uint64_t missing = 0;
    uint64_t hashed = 0;          // bytes from the start that `hash` has seen
    std::optional<Hash128> hash;  // while it is fetched
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
  std::shared_ptr<const WeightSnapshot> base_;  // null: everything dense
  WeightMemory memory_;
  DeltaScratch scratch_;
  std::vector<Tensor> tensors_;
  std::deque<ChunkBody> waiting_;
  std::map<Key, std::pair<ChunkBody, Clock::time_point>> under_way_;
  std::size_t next_tensor_ = 0;  // first that was never enqueued
  std::size_t verified_ = 0;
  uint64_t mismatches_ = 0;
  uint64_t refetched_ = 0;
};

}  // namespace ringside::bridge
