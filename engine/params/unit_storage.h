// Storage of a parameter unit on this rank: the flat master buffer, all of it or a shard, its
// gradient, and which elements of the unit they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/params/named_slice.h"
#include "engine/params/sharding.h"
#include "engine/params/unit_layout.h"

namespace ringside::engine {

// Parts of a unit whose parameters are not all used by one rank, such as experts.
struct UnitParts {
  std::shared_ptr<sp::Communicator> ranks;  // the owner of each part
  std::vector<int64_t> ends;                // of each part, in elements
};

// The elements of a unit that a rank computes with.
struct UnitPart {
  std::shared_ptr<sp::Communicator> ranks;  // the owners of all parts; null: this one is the whole
  std::vector<int64_t> sizes;               // elements of each part; empty without `ranks`
  int64_t of_layout = 0;                    // which part of the layout's cut
  int64_t begin = 0;                        // of its elements, in the buffer of that part
  int64_t numel = 0;
};

// Thread safety: const functions from any thread while no thread writes values.
class UnitStorage {
 public:
  // Allocates a zero buffer in the context's master dtype, on its device: this rank's shard if the
  // context shards over more than one rank. Of a layout that is cut it holds the part of this
  // rank's place in the context's tensor sharding.
  // Throws: as ParamUnit.
  UnitStorage(UnitLayout layout, const ComputeContext& context, std::optional<UnitParts> parts);

  const UnitLayout& layout() const { return layout_; }
  const ComputeContext& context() const { return context_; }
  const UnitPart& part() const { return part_; }

  // Whether other ranks have some of the part's elements.
  bool is_cut() const;
  // Whether its elements are gathered for use, because it is cut or in host memory.
  bool is_gathered() const { return shard_.has_value(); }
  // Whether this rank has all elements of the unit, on the device.
  bool is_whole() const { return !is_gathered() && part_.sizes.size() < 2; }

  // The master buffer, the autograd leaf (requires_grad is set): [part().numel], or a shard with
  // padding at its end, which stays 0.
  at::Tensor& flat() { return flat_; }
  const at::Tensor& flat() const { return flat_; }

  // Makes the parameters constants, held in `dtype` or as widened_dtype() says: no gradient, no
  // master copy.
  void freeze(at::ScalarType dtype);
  // Frees the values, which are kept elsewhere. Layout and part stay; flat() has no memory and
  // view() throws.
  void release();

  // Accumulated gradient of flat(), in master dtype. This is the buffer itself: writing to it
  // changes the gradient. Zeros, allocated on the first call, when no backward has reached this
  // unit. Of a gathered unit it is complete after GradientSync::finish().
  at::Tensor grad() const;
  // Drops the gradient buffer, so the next backward stores its result instead of adding to zeros.
  void zero_grad();

  // This rank's ranges of the parameters, in order, as views of flat() outside autograd, for load,
  // save and the optimizer. A whole unit has one slice a parameter; a parameter that tensor ranks
  // divide may have several.
  std::vector<NamedSlice> slices() const { return slices_of(flat_.detach()); }
  // slices() of another buffer of flat()'s layout: an optimizer moment, a gradient.
  // Throws: c10::Error on another shape.
  std::vector<NamedSlice> slices_of(const at::Tensor& buffer) const;
  // Those of parameter i; empty when all of it is on other ranks.
  // Throws: as slices_of(); std::out_of_range when there is no such parameter.
  std::vector<NamedSlice> slices_of(const at::Tensor& buffer, std::size_t i) const;

  // View of parameter i's master values with its shape, outside autograd. Whole units only.
  // Throws: std::out_of_range when there is no such parameter; c10::Error for a unit that is not
  // whole, and for a released one.
  at::Tensor view(std::size_t i) const;

  // The ranks that hold the same elements as this one; null = all ranks, where tensor-parallel ones
  // are not known. Lives as long as this.
  sp::Communicator* holders() const;
  // The groups over which the unit's elements are spread: a number that every rank has for its own
  // elements is one for the whole unit when it is summed over each of them in turn.
  std::vector<sp::Communicator*> spread() const;

 private:
  UnitLayout layout_;
  ComputeContext context_;
  UnitPart part_;
  std::optional<ShardRange> shard_;  // of the part; nullopt: all of it, used where it is
  at::Tensor flat_;
};

// Sets parameter i to `whole`, of its shape; each rank copies its range. Call the unit's changed()
// afterwards. Not collective.
// Throws: c10::Error on another shape; std::out_of_range when there is no such parameter.
void assign(const UnitStorage& storage, std::size_t i, const at::Tensor& whole);

}  // namespace ringside::engine
