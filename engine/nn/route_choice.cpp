#include "engine/nn/route_choice.h"

#include <ATen/ATen.h>

namespace ringside::engine {
namespace {

// Ids of the first that are not in the same row of the second.
at::Tensor count_missing(const at::Tensor& ids_sK, const at::Tensor& in_sK) {
  return ids_sK.unsqueeze(2).ne(in_sK.unsqueeze(1)).all(2).sum(at::kDouble);
}

at::Tensor used_experts(ForwardRoutes* forward, int64_t index, int64_t experts,
                        const std::function<at::Tensor()>& own) {
  const at::ScalarType dtype = route_dtype(experts);
  const at::Tensor own_sK = own().to(dtype);
  if (forward == nullptr) {
    return own_sK;
  }
  at::Tensor used = own_sK;
  if (const at::Tensor& replayed = forward->replayed_sLK; replayed.defined()) {
    TORCH_CHECK(replayed.dim() == 3 && replayed.size(0) == own_sK.size(0) &&
                    index < replayed.size(1) && replayed.size(2) == own_sK.size(1),
                "replayed routes ", replayed.sizes(), " for layer ", index,
                " with experts, whose router chooses ", own_sK.sizes());
    used = replayed.select(1, index).to(dtype);
    const at::Tensor changed = count_missing(used, own_sK);
    forward->changed = forward->changed.defined() ? forward->changed + changed : changed;
  }
  if (forward->records) {
    forward->recorded_sK.push_back(used);
  }
  return used;
}

}  // namespace

at::ScalarType route_dtype(int64_t experts) { return experts <= 256 ? at::kByte : at::kShort; }

at::Tensor ForwardRoutes::recorded_sLK() const { return at::stack(recorded_sK, 1); }

at::Tensor LayerRoutes::choose(int64_t experts, const std::function<at::Tensor()>& own) const {
  const bool asked = forward != nullptr && (forward->replayed_sLK.defined() || forward->records);
  if (!asked && kept == nullptr) {
    return own();
  }
  const auto compute = [&] {
    return sp::KeptResults::Tensors{used_experts(forward, index, experts, own)};
  };
  return sp::compute_once(kept.get(), compute).front().to(at::kLong);
}

}  // namespace ringside::engine
