// Parameter unit: a layer's parameters in one flat buffer. Model, optimizer, gradient sync,
// checkpoint and weight publisher work on these units. The flat master buffer is the only autograd
// leaf. materialize() casts and splits it, so the gradient of the whole unit is one flat buffer,
// summed in master precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/device/device_event.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// One named tensor inside the flat buffer. `name` is the Hugging Face name.
struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel() const;
  bool operator==(const ParamSpec&) const = default;
};

class ParamUnit {
 public:
  // Allocates a zero buffer in the context's master dtype, on its device. Loading or initialisation
  // fills it through view().
  ParamUnit(std::string name, std::vector<ParamSpec> specs, const ComputeContext& context);

  const std::string& name() const { return name_; }
  const std::vector<ParamSpec>& specs() const { return specs_; }

  // [numel] master buffer, the autograd leaf (requires_grad is set).
  at::Tensor& flat() { return flat_; }
  const at::Tensor& flat() const { return flat_; }

  // Makes the parameters constants, held in `dtype`: no gradient, no master copy. Call it before
  // anything takes the leaf.
  void freeze(at::ScalarType dtype);

  // Frees the values, which are kept elsewhere. Names, shapes and ranges stay; flat() has no memory
  // and view() throws.
  void release();

  // [numel] accumulated gradient in master dtype. This is the buffer itself: writing to it changes
  // the gradient. Zeros, allocated on the first call, when no backward has reached this unit.
  at::Tensor grad() const;

  // Drops the gradient buffer, so the next backward stores its result instead of adding to zeros.
  void zero_grad();

  // The parameters of specs() in order, for use in compute_dtype; differentiable towards flat().
  std::vector<Weight> materialize(at::ScalarType compute_dtype) const;

  // materialize() with other shapes, in order. Adjacent parameters of equal row length (q, k and v;
  // gate and up) become one matrix for a single GEMM.
  // Throws: c10::Error when the shapes do not add up to the buffer.
  std::vector<Weight> materialize(at::ScalarType compute_dtype,
                                  const std::vector<std::vector<int64_t>>& shapes) const;

  // Range of parameter i in flat(), in elements.
  // Throws: std::out_of_range as view.
  struct Range {
    int64_t offset;
    int64_t numel;
  };
  Range range(std::size_t i) const { return {offsets_.at(i), specs_[i].numel()}; }

  // View of parameter i's master values with its shape, outside autograd, for load, save and
  // publish.
  // Throws: std::out_of_range when i is not below specs().size().
  at::Tensor view(std::size_t i) const;

  // Makes the next change of the weights wait for a copy that still reads them.
  void hold_for(std::shared_ptr<const DeviceEvent> read) const { being_read_ = std::move(read); }
  // Call before changing the weights: later work of `stream` waits for such a copy. Blocks: never.
  void await_readers(const c10::Stream& stream) const;

  // view() of another flat buffer of this layout: an optimizer moment, a gradient.
  at::Tensor view_of(const at::Tensor& buffer, std::size_t i) const;

 private:
  std::string name_;
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;  // of each parameter in flat_, in elements
  at::Tensor flat_;
  mutable std::shared_ptr<const DeviceEvent> being_read_;
};

}  // namespace ringside::engine
