// Gathering of one unit's shards into a whole buffer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "engine/device/compute_context.h"
#include "engine/params/sharding.h"

namespace ringside::engine {

// Shapes: n = elements of the unit, W = ranks of the shard, c = ceil(n / W). Rank r keeps elements
// [r c, (r + 1) c) of the flat buffer (own_range()); what lies beyond n is padding with zeros.
// Thread safety: none; one thread of a rank launches its collectives.
class ShardGather {
 public:
  // context: with sharding. numel: n. Sends nothing yet.
  ShardGather(const ComputeContext& context, int64_t numel);

  const Sharding& sharding() const { return *context_.sharding; }
  const ShardRange& range() const { return range_; }         // this rank's
  bool keeps_whole() const { return sharding().stage < 3; }  // until invalidate()

  // Starts gathering `shard_c` in `dtype`; the next whole() of this dtype returns it. Does nothing
  // while a whole buffer is kept or on its way, or when Sharding::prefetch is off.
  // Collective over: the shard.
  // Blocks: never.
  void prefetch(const at::Tensor& shard_c, at::ScalarType dtype);

  // The whole buffer [n] in `dtype`. The caller's tensor is the only owner, unless keeps_whole().
  // Collective over: the shard, unless it is kept or prefetched.
  // Blocks: until it is there; on CUDA only the current stream waits.
  at::Tensor whole(const at::Tensor& shard_c, at::ScalarType dtype);

  // The whole buffer [n] in the shard's own dtype, whatever is kept or prefetched.
  // Collective over: the shard.
  // Blocks: as whole().
  at::Tensor gather_once(const at::Tensor& shard_c) const;

  // Starts filling the storage of a buffer that whole() returned, after release_storage().
  // Autograd takes no notice, because the values are the same as before.
  // Collective over: the shard.
  // Blocks: never; the transfer's wait() does.
  std::unique_ptr<sp::Transfer> start_refill(const at::Tensor& shard_c, const at::Tensor& whole);

  // Drops kept and prefetched buffers. Call it when the shard changes.
  void invalidate();

 private:
  struct Gathering {
    at::Tensor padded;  // [W c]
    std::unique_ptr<sp::Transfer> transfer;
  };
  Gathering start(const at::Tensor& sent) const;
  at::Tensor finish(Gathering gathering) const;
  // The shard on the device in `dtype`.
  at::Tensor on_device(const at::Tensor& shard_c, at::ScalarType dtype);

  ComputeContext context_;
  int64_t numel_;
  ShardRange range_;
  Gathering prefetched_;
  at::Tensor kept_;
  at::Tensor host_values_;    // [c] of a shard in host memory: its values in the compute dtype
  at::Tensor device_values_;  // the same on the device
  bool stale_ = true;         // host_values_ is older than the shard
};

// Frees the memory of a tensor whose metadata is still in use, such as one saved for the backward.
void release_storage(const at::Tensor& tensor);

}  // namespace ringside::engine
