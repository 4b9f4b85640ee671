#include "engine/params/param_unit.h"

#include <utility>

namespace ringside::engine {

ParamUnit::ParamUnit(std::string name, std::vector<ParamSpec> specs, const ComputeContext& context,
                     std::optional<UnitParts> parts)
    : storage_(std::make_unique<UnitStorage>(UnitLayout(std::move(name), std::move(specs)), context,
                                             std::move(parts))),
      gathered_(std::make_unique<GatheredUnit>(*storage_)) {}

void ParamUnit::zero_grad() {
  storage_->zero_grad();
  gathered_->drop_open_gradients();
}

void ParamUnit::freeze(at::ScalarType dtype) {
  storage_->freeze(dtype);
  changed();
}

void ParamUnit::release() {
  gathered_->release();
  storage_->release();
}

}  // namespace ringside::engine
