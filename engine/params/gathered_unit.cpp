#include "engine/params/gathered_unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Holder of a pointer, because an IValue stores intrusive pointers only.
struct UnitHolder : torch::CustomClassHolder {
  explicit UnitHolder(GatheredUnit& u) : unit(u) {}
  GatheredUnit& unit;
};

// Stands for the whole unit in autograd, without memory of its own: the gradients of the unit's
// parameters meet here.
struct WholeLeaf : torch::autograd::Function<WholeLeaf> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& shard_c,
                            const c10::intrusive_ptr<UnitHolder>& holder) {
    ctx->saved_data["unit"] = c10::IValue::make_capsule(holder);
    const UnitStorage& storage = holder->unit.storage();
    return at::empty_strided(
        {storage.part().numel}, {0},
        at::TensorOptions().dtype(shard_c.scalar_type()).device(storage.context().device));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto capsule = ctx->saved_data["unit"].toCapsule();
    static_cast<const UnitHolder&>(*capsule).unit.receive_gradient(std::move(grads[0]));
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

GatheredUnit::GatheredUnit(const UnitStorage& storage) : storage_(storage) {
  if (storage.is_gathered()) {
    gather_ = std::make_unique<ShardGather>(storage.context(), storage.part().numel);
  }
}

std::vector<Weight> GatheredUnit::materialize(at::ScalarType compute_dtype) {
  return materialize(storage_.layout().shapes(compute_dtype, storage_.part().of_layout));
}

std::vector<Weight> GatheredUnit::materialize(const UnitShapes& cut) {
  const std::string& name = storage_.layout().name();
  const at::Tensor& flat = storage_.flat();
  const bool casts = gather_ != nullptr || cut.dtype != flat.scalar_type();
  at::Tensor leaf = flat;
  if (gather_ != nullptr) {
    open_gradients_ += at::GradMode::is_enabled() && flat.requires_grad() ? 1 : 0;
    leaf = WholeLeaf::apply(flat, c10::make_intrusive<UnitHolder>(*this));
  }
  const std::vector<at::Tensor> leaves = matrices_of(name, leaf, cut);
  const ProductKernels kernel = storage_.context().products.of(cut.dtype);
  std::vector<Weight> weights;
  if (!casts) {
    for (const at::Tensor& value : leaves) {
      weights.emplace_back(value).kernel = kernel;
    }
    return weights;
  }
  const std::vector<at::Tensor> values = matrices_of(
      name, gather_ != nullptr ? gather_->whole(flat, cut.dtype) : flat.detach().to(cut.dtype),
      cut);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    weights.emplace_back(values[i], leaves[i]).kernel = kernel;
  }
  return weights;
}

void GatheredUnit::receive_gradient(at::Tensor gradient) {
  TORCH_CHECK(on_gradient_, "unit ", storage_.layout().name(),
              " is sharded and no GradientSync takes its gradient");
  --open_gradients_;
  on_gradient_(std::move(gradient), open_gradients_ == 0);
}

void GatheredUnit::prefetch(at::ScalarType compute_dtype) {
  if (gather_ != nullptr) {
    gather_->prefetch(storage_.flat(), compute_dtype);
  }
}

at::Tensor GatheredUnit::gather_flat() const {
  const at::Tensor own =
      storage_.is_cut() ? gather_->gather_once(storage_.flat()) : storage_.flat().detach();
  const UnitPart& part = storage_.part();
  if (part.ranks == nullptr) {
    return own;
  }
  return storage_.layout().whole_of(
      part.ranks->all_gather_rows(own.to(storage_.context().device), part.sizes, "parameters"));
}

void GatheredUnit::invalidate() {
  if (gather_ != nullptr) {
    gather_->invalidate();
  }
}

void GatheredUnit::await_readers(const c10::Stream& stream) {
  if (const auto read = std::exchange(being_read_, nullptr)) {
    read->make_wait(stream);
  }
}

}  // namespace ringside::engine
