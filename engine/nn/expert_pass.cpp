#include "engine/nn/expert_pass.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ringside::engine {
namespace {

// Ids of the first that are not in the same row of the second.
at::Tensor count_missing(const at::Tensor& ids_sK, const at::Tensor& in_sK) {
  return ids_sK.unsqueeze(2).ne(in_sK.unsqueeze(1)).all(2).sum(at::kDouble);
}

at::Tensor used_experts(ExpertNotes* notes, int64_t index, int64_t experts,
                        const std::function<at::Tensor()>& own) {
  const at::ScalarType dtype = route_dtype(experts);
  const at::Tensor own_sK = own().to(dtype);
  if (notes == nullptr) {
    return own_sK;
  }
  at::Tensor used = own_sK;
  if (const at::Tensor& replayed = notes->replayed_sLK; replayed.defined()) {
    TORCH_CHECK(replayed.dim() == 3 && replayed.size(0) == own_sK.size(0) &&
                    index < replayed.size(1) && replayed.size(2) == own_sK.size(1),
                "replayed routes ", replayed.sizes(), " for layer ", index,
                " with experts, whose router chooses ", own_sK.sizes());
    used = replayed.select(1, index).to(dtype);
    const at::Tensor changed = count_missing(used, own_sK);
    notes->changed = notes->changed.defined() ? notes->changed + changed : changed;
  }
  if (notes->records) {
    notes->recorded_sK.push_back(used);
  }
  return used;
}

}  // namespace

at::ScalarType route_dtype(int64_t experts) { return experts <= 256 ? at::kByte : at::kShort; }

at::Tensor ExpertNotes::recorded_sLK() const { return at::stack(recorded_sK, 1); }

at::Tensor ExpertPass::choose(int64_t experts, const std::function<at::Tensor()>& own) const {
  const bool asked = notes != nullptr && (notes->replayed_sLK.defined() || notes->records);
  if (!asked && kept == nullptr) {
    return own();
  }
  const auto compute = [&] {
    return sp::KeptResults::Tensors{used_experts(notes, index, experts, own)};
  };
  return sp::compute_once(kept.get(), compute).front().to(at::kLong);
}

void ExpertPass::add_load(const std::vector<int64_t>& rows_X) const {
  if (notes == nullptr || notes->load == nullptr) {
    return;
  }
  sp::compute_once(kept.get(), [&] {
    std::vector<double>& load = notes->load->at(layer);
    std::ranges::transform(load, rows_X, load.begin(), std::plus<>());
    return sp::KeptResults::Tensors{};
  });
}

}  // namespace ringside::engine
