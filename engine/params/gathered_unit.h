// Values of a parameter unit for use: gathered from the ranks that store them, in the compute
// dtype, with the way of their gradient back to the master buffer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/device/device_event.h"
#include "engine/params/shard_gather.h"
#include "engine/params/unit_storage.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// A unit that is not gathered is used where it is stored; all functions then send nothing.
// Thread safety: those of such a unit that read, from any thread while no thread writes values. A
// gathered unit is used by one thread.
class GatheredUnit {
 public:
  // Called in a backward of a gathered unit with a gradient of all that is gathered [part().numel],
  // in master dtype, in place of what autograd does for a leaf. There is one call for each
  // materialize() of the forward; `last` says that none is open any more.
  using OnGradient = std::function<void(at::Tensor gradient, bool last)>;

  // `storage` outlives it.
  explicit GatheredUnit(const UnitStorage& storage);

  const UnitStorage& storage() const { return storage_; }

  // The parameters of the layout in order, for use in compute_dtype; differentiable towards
  // storage().flat().
  // Collective over: the shard, unless its values are kept or prefetched.
  // Throws: c10::Error as below, for a unit in parts.
  std::vector<Weight> materialize(at::ScalarType compute_dtype);

  // materialize() of other shapes: those of a part, and adjacent parameters of equal row length (q,
  // k and v; gate and up) as one matrix for a single GEMM. Matrices of a buffer of several rows are
  // strided.
  // Collective over: as above.
  // Throws: c10::Error when the shapes do not add up to the buffer.
  std::vector<Weight> materialize(const UnitShapes& cut);

  // Starts gathering the shards for the next materialize() in compute_dtype.
  // Collective over: the shard.
  // Blocks: never.
  void prefetch(at::ScalarType compute_dtype);

  // The whole master buffer [layout().numel()], outside autograd: a view of flat() where that is
  // whole.
  // Collective over: the shard; the parts' ranks.
  at::Tensor gather_flat() const;

  // Drops gathered copies, after a change of flat().
  void invalidate();
  // The same for ever: the values are kept elsewhere.
  void release() { gather_.reset(); }

  // The gathers behind materialize(); null for a unit that is used where it is stored.
  ShardGather* gather() const { return gather_.get(); }

  // What receives the gradients; before the first backward.
  void on_gradient(OnGradient function) { on_gradient_ = std::move(function); }
  // Calls on_gradient()'s function. For the backward.
  // Throws: c10::Error when none is set.
  void receive_gradient(at::Tensor gradient);
  // Expects no gradient of earlier forwards any more.
  void drop_open_gradients() { open_gradients_ = 0; }

  // Makes the next change of the weights wait for a copy that still reads them.
  void hold_for(std::shared_ptr<const DeviceEvent> read) { being_read_ = std::move(read); }
  // Call before changing the weights: later work of `stream` waits for such a copy.
  // Blocks: never.
  void await_readers(const c10::Stream& stream);

 private:
  const UnitStorage& storage_;
  std::unique_ptr<ShardGather> gather_;
  OnGradient on_gradient_;
  int64_t open_gradients_ = 0;  // materialize() calls whose gradient has not come yet
  std::shared_ptr<const DeviceEvent> being_read_;
};

}  // namespace ringside::engine
