// Parameter unit: a layer's parameters in one flat buffer, or this rank's shard of it. Model,
// optimizer, gradient sync, checkpoint and weight publisher work on these units. The flat master
// buffer is the only autograd leaf. materialize() casts and splits it, so the gradient of the whole
// unit is one flat buffer, summed in master precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/device/device_event.h"
#include "engine/params/named_slice.h"
#include "engine/params/shard_gather.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// One named tensor inside the flat buffer. `name` is the Hugging Face name.
struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  // Kept, stored and published in fp32 where the other parameters are narrower. All parameters of a
  // unit agree in this.
  bool in_fp32 = false;
  // Number of elements.
  int64_t numel() const;
  bool operator==(const ParamSpec&) const = default;
};

// The dtype of a parameter in files and messages whose other parameters have `dtype`.
at::ScalarType widened_dtype(const ParamSpec& spec, at::ScalarType dtype);

// Parts of a unit whose parameters are not all used by one rank, such as experts.
struct UnitParts {
  std::shared_ptr<sp::Communicator> ranks;  // the owner of each part
  std::vector<int64_t> ends;                // of each part, in elements
};

// The elements of a unit's whole buffer that a rank computes with.
struct UnitPart {
  std::shared_ptr<sp::Communicator> ranks;  // the owners of all parts; null: this one is the whole
  std::vector<int64_t> begins;              // of each part, and the end of the last
  int64_t begin = 0;                        // of this rank's
  int64_t numel = 0;
};

// How a unit's buffer is cut into matrices. Each of `rows` rows of the buffer holds one row of
// every matrix, one after another; one row holds all of them.
struct UnitShapes {
  at::ScalarType dtype;
  std::vector<std::vector<int64_t>> shapes;
  int64_t rows = 1;
};

// Thread safety: const functions of a whole unit, from any thread while no thread writes values. A
// sharded unit is used by one thread.
class ParamUnit {
 public:
  // Allocates a zero buffer in the context's master dtype, on its device: this rank's shard if the
  // context shards over more than one rank. Loading or initialisation fills it through slices().
  // parts: this rank computes with its own part alone, and context.sharding cuts that part. Names
  // and shapes are still those of the whole unit, on every rank.
  // Throws: c10::Error unless every rank has a part and the parts are all elements; when parts, or
  // master weights in host memory, come without context.sharding.
  ParamUnit(std::string name, std::vector<ParamSpec> specs, const ComputeContext& context,
            std::optional<UnitParts> parts = std::nullopt);

  const std::string& name() const { return name_; }
  const std::vector<ParamSpec>& specs() const { return specs_; }

  const ComputeContext& context() const { return context_; }

  // Elements of all parameters together, on all ranks.
  int64_t numel() const { return numel_; }
  // Whether materialize() gathers what this rank stores: a shard, or a buffer in host memory.
  bool is_sharded() const { return gather_ != nullptr; }
  const UnitPart& part() const { return part_; }

  // This rank's master buffer, the autograd leaf (requires_grad is set): [part().numel], or a shard
  // with padding at its end, which stays 0.
  at::Tensor& flat() { return flat_; }
  const at::Tensor& flat() const { return flat_; }

  // Makes the parameters constants, held in `dtype` or as widened_dtype() says: no gradient, no
  // master copy. Call it before anything takes the leaf.
  void freeze(at::ScalarType dtype);

  // Frees the values, which are kept elsewhere. Names, shapes and ranges stay; flat() has no memory
  // and view() throws.
  void release();

  // Accumulated gradient of flat(), in master dtype. This is the buffer itself: writing to it
  // changes the gradient. Zeros, allocated on the first call, when no backward has reached this
  // unit. A sharded unit's gradient is complete after GradientSync::finish().
  at::Tensor grad() const;

  // Drops the gradient buffer, so the next backward stores its result instead of adding to zeros.
  void zero_grad();

  // The parameters of specs() in order, for use in compute_dtype; differentiable towards flat().
  // Collective over: the shard, unless its values are kept or prefetched.
  // Throws: c10::Error as below, for a unit in parts.
  std::vector<Weight> materialize(at::ScalarType compute_dtype) const;

  // materialize() of other shapes: those of a part, and adjacent parameters of equal row length (q,
  // k and v; gate and up) as one matrix for a single GEMM. Matrices of a buffer of several rows are
  // strided.
  // Collective over: as above.
  // Throws: c10::Error when the shapes do not add up to the buffer.
  std::vector<Weight> materialize(const UnitShapes& cut) const;

  // Starts gathering the shards for the next materialize() in compute_dtype. Nothing happens for a
  // whole unit.
  // Collective over: the shard.
  // Blocks: never.
  void prefetch(at::ScalarType compute_dtype) const;

  // The whole master buffer [numel], outside autograd: a view of flat() where that is whole.
  // Collective over: the shard; the parts' ranks.
  at::Tensor gather_flat() const;

  // Call after every change of flat(): drops gathered copies.
  void changed() const;

  // The gathers behind materialize(); null for a whole unit.
  ShardGather* gather() const { return gather_.get(); }

  // Called in a backward of a sharded unit with a gradient of all that is gathered [part().numel],
  // in master dtype, in place of what autograd does for a leaf. There is one call for each
  // materialize() of the forward; `last` says that none is open any more.
  using OnGradient = std::function<void(at::Tensor gradient, bool last)>;
  void on_gradient(OnGradient function) { on_gradient_ = std::move(function); }
  // Calls on_gradient()'s function. For the backward.
  // Throws: c10::Error when none is set.
  void receive_gradient(at::Tensor gradient) const;

  // This rank's ranges of the parameters, in order, as views of flat() outside autograd, for load,
  // save and the optimizer. A whole unit has one slice a parameter.
  std::vector<NamedSlice> slices() const { return slices_of(flat_.detach()); }
  // slices() of another buffer of flat()'s layout: an optimizer moment, a gradient.
  // Throws: c10::Error on another shape.
  std::vector<NamedSlice> slices_of(const at::Tensor& buffer) const;
  // The slice of parameter i; nullopt when all of it is on other ranks.
  // Throws: as slices_of(); std::out_of_range when i is not below specs().size().
  std::optional<NamedSlice> slice_of(const at::Tensor& buffer, std::size_t i) const;

  // A parameter's place in the whole flat buffer, in elements.
  struct Range {
    int64_t offset;
    int64_t numel;
  };
  // The place of parameter i.
  // Throws: std::out_of_range when i is not below specs().size().
  Range range(std::size_t i) const { return {offsets_.at(i), specs_[i].numel()}; }

  // View of parameter i's master values with its shape, outside autograd. Whole units only.
  // Throws: std::out_of_range when i is not below specs().size(); c10::Error for a sharded unit,
  // and for a released one.
  at::Tensor view(std::size_t i) const;

  // Makes the next change of the weights wait for a copy that still reads them.
  void hold_for(std::shared_ptr<const DeviceEvent> read) const { being_read_ = std::move(read); }
  // Call before changing the weights: later work of `stream` waits for such a copy.
  // Blocks: never.
  void await_readers(const c10::Stream& stream) const;

  // Parameter i in another whole flat buffer: what gather_flat() returned, a whole moment. A view
  // with its shape.
  // Throws: c10::Error on another number of elements; std::out_of_range as view().
  at::Tensor view_of(const at::Tensor& buffer, std::size_t i) const;

 private:
  std::string name_;
  ComputeContext context_;
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;  // of each parameter in the whole flat buffer, in elements
  int64_t numel_ = 0;
  UnitPart part_;
  at::Tensor flat_;
  std::unique_ptr<ShardGather> gather_;
  OnGradient on_gradient_;
  mutable int64_t open_gradients_ = 0;  // materialize() calls whose gradient has not come yet
  mutable std::shared_ptr<const DeviceEvent> being_read_;
};

// Whether this rank stores all elements, and on the device.
bool is_whole(const ParamUnit& unit);

// The ranks that hold the same elements as this one; null = all ranks. Lives as long as the unit.
sp::Communicator* holders_of(const ParamUnit& unit);

// The groups over which the unit's elements are spread: a number that every rank has for its own
// elements is one for the whole unit when it is summed over each of them in turn.
std::vector<sp::Communicator*> spread_of(const ParamUnit& unit);

// Sets parameter i to `whole`, of its shape; each rank copies its range. Call changed() afterwards.
// Not collective.
// Throws: c10::Error on another shape; std::out_of_range when there is no such parameter.
void assign(const ParamUnit& unit, std::size_t i, const at::Tensor& whole);

}  // namespace ringside::engine
