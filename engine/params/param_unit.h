// Parameter unit: a layer's parameters in one flat buffer, or this rank's shard of it. Model,
// optimizer, gradient sync, checkpoint and weight publisher work on these units. The flat master
// buffer is the only autograd leaf, so the gradient of the whole unit is one flat buffer, summed in
// master precision.
//
// A unit is three things, and its users take the one that they need: the layout says what the
// parameters are, the storage holds them, and the gathered unit is what layers compute with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/params/gathered_unit.h"
#include "engine/params/unit_layout.h"
#include "engine/params/unit_storage.h"

namespace ringside::engine {

// Thread safety: as its parts. Moving it leaves them where they are.
class ParamUnit {
 public:
  // Allocates a zero buffer in the context's master dtype, on its device: this rank's shard if the
  // context shards over more than one rank. Loading or initialisation fills it through the
  // storage's slices().
  // parts: this rank computes with its own part alone, and context.sharding cuts that part. Names
  // and shapes are still those of the whole unit, on every rank.
  // Throws: c10::Error unless every rank has a part and the parts are all elements; when parts, or
  // master weights in host memory, come without context.sharding.
  ParamUnit(std::string name, std::vector<ParamSpec> specs, const ComputeContext& context,
            std::optional<UnitParts> parts = std::nullopt);

  const UnitLayout& layout() const { return storage_->layout(); }
  UnitStorage& storage() { return *storage_; }
  const UnitStorage& storage() const { return *storage_; }
  // Of a const unit too: a gather changes no value.
  GatheredUnit& gathered() const { return *gathered_; }

  // Of the layout and the storage, for short.
  const std::string& name() const { return layout().name(); }
  const std::vector<ParamSpec>& specs() const { return layout().specs(); }
  at::Tensor& flat() { return storage_->flat(); }
  const at::Tensor& flat() const { return storage().flat(); }
  at::Tensor grad() const { return storage_->grad(); }
  at::Tensor view(std::size_t i) const { return storage_->view(i); }

  // Call after every change of flat(): drops gathered copies.
  void changed() const { gathered_->invalidate(); }
  // Drops the gradient, also one that has not come yet.
  void zero_grad();
  // UnitStorage::freeze(). Call it before anything takes the leaf.
  void freeze(at::ScalarType dtype);
  // UnitStorage::release().
  void release();

 private:
  std::unique_ptr<UnitStorage> storage_;
  std::unique_ptr<GatheredUnit> gathered_;
};

}  // namespace ringside::engine
