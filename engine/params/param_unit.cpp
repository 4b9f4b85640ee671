#include "engine/params/param_unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

namespace ringside::engine {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) {
    n *= size;
  }
  return n;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Holder of a pointer, because an IValue stores intrusive pointers only.
struct UnitHolder : torch::CustomClassHolder {
  explicit UnitHolder(const ParamUnit& u) : unit(u) {}
  const ParamUnit& unit;
};

// Stands for the whole unit in autograd, without memory of its own: the gradients of the unit's
// parameters meet here.
struct WholeLeaf : torch::autograd::Function<WholeLeaf> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& shard_c,
                            const c10::intrusive_ptr<UnitHolder>& holder) {
    ctx->saved_data["unit"] = c10::IValue::make_capsule(holder);
    return at::empty_strided(
        {holder->unit.numel()}, {0},
        at::TensorOptions().dtype(shard_c.scalar_type()).device(holder->unit.context().device));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto capsule = ctx->saved_data["unit"].toCapsule();
    static_cast<const UnitHolder&>(*capsule).unit.receive_gradient(std::move(grads[0]));
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

int64_t ParamSpec::numel() const { return product(shape); }

at::ScalarType widened_dtype(const ParamSpec& spec, at::ScalarType dtype) {
  return spec.in_fp32 ? at::promote_types(dtype, at::kFloat) : dtype;
}

ParamUnit::ParamUnit(std::string name, std::vector<ParamSpec> specs, const ComputeContext& context)
    : name_(std::move(name)), context_(context), specs_(std::move(specs)) {
  for (const ParamSpec& spec : specs_) {
    offsets_.push_back(numel_);
    numel_ += spec.numel();
  }
  int64_t local = numel_;
  TORCH_CHECK(context.sharding || !context.host_master,
              "a unit with master weights in host memory needs a sharding, if only over one rank");
  if (context.sharding && (context.sharding->shard->size() > 1 || context.host_master)) {
    gather_ = std::make_unique<ShardGather>(context, numel_);
    local = gather_->shard_numel();
  }
  flat_ = at::zeros({local}, context.master_options()).set_requires_grad(true);
}

void ParamUnit::freeze(at::ScalarType dtype) {
  flat_ = flat_.detach().to(specs_.empty() ? dtype : widened_dtype(specs_.front(), dtype));
  changed();
}

void ParamUnit::release() {
  gather_.reset();
  flat_ = at::empty({numel_}, at::TensorOptions().dtype(flat_.scalar_type()).device(at::kMeta));
}

at::Tensor ParamUnit::grad() const {
  at::Tensor& grad = flat_.mutable_grad();
  if (!grad.defined()) {
    grad = at::zeros(flat_.sizes(), context_.master_options());
  }
  return grad;
}

void ParamUnit::zero_grad() {
  flat_.mutable_grad().reset();
  open_gradients_ = 0;
}

std::vector<Weight> ParamUnit::materialize(at::ScalarType compute_dtype) const {
  std::vector<std::vector<int64_t>> shapes;
  shapes.reserve(specs_.size());
  for (const ParamSpec& spec : specs_) {
    shapes.push_back(spec.shape);
  }
  return materialize(compute_dtype, shapes);
}

std::vector<Weight> ParamUnit::materialize(at::ScalarType compute_dtype,
                                           const std::vector<std::vector<int64_t>>& shapes) const {
  std::vector<int64_t> sizes;
  sizes.reserve(shapes.size());
  int64_t numel = 0;
  for (const std::vector<int64_t>& shape : shapes) {
    sizes.push_back(product(shape));
    numel += sizes.back();
  }
  TORCH_CHECK(numel == numel_, "unit ", name_, " holds ", numel_,
              " elements, the shapes asked for take ", numel);
  const bool casts = is_sharded() || compute_dtype != flat_.scalar_type();
  const std::vector<at::Tensor> leaves = whole_leaf().split_with_sizes(sizes);
  const std::vector<at::Tensor> values =
      !casts         ? leaves
      : is_sharded() ? gather_->whole(flat_, compute_dtype).split_with_sizes(sizes)
                     : flat_.detach().to(compute_dtype).split_with_sizes(sizes);
  std::vector<Weight> weights;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor leaf = leaves[i].view(shapes[i]);
    weights.push_back(casts ? Weight(values[i].view(shapes[i]), leaf) : Weight(leaf));
  }
  return weights;
}

at::Tensor ParamUnit::whole_leaf() const {
  if (!is_sharded()) {
    return flat_;
  }
  open_gradients_ += at::GradMode::is_enabled() && flat_.requires_grad() ? 1 : 0;
  return WholeLeaf::apply(flat_, c10::make_intrusive<UnitHolder>(*this));
}

void ParamUnit::receive_gradient(at::Tensor gradient) const {
  TORCH_CHECK(on_gradient_, "unit ", name_, " is sharded and no GradientSync takes its gradient");
  --open_gradients_;
  on_gradient_(std::move(gradient), open_gradients_ == 0);
}

void ParamUnit::prefetch(at::ScalarType compute_dtype) const {
  if (is_sharded()) {
    gather_->prefetch(flat_, compute_dtype);
  }
}

at::Tensor ParamUnit::gather_flat() const {
  return is_sharded() && gather_->sharding().shard->size() > 1 ? gather_->gather_once(flat_)
                                                               : flat_.detach();
}

void ParamUnit::changed() const {
  if (is_sharded()) {
    gather_->invalidate();
  }
}

std::vector<NamedSlice> ParamUnit::slices_of(const at::Tensor& buffer) const {
  std::vector<NamedSlice> slices;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (auto slice = slice_of(buffer, i)) {
      slices.push_back(std::move(*slice));
    }
  }
  return slices;
}

std::optional<NamedSlice> ParamUnit::slice_of(const at::Tensor& buffer, std::size_t i) const {
  TORCH_CHECK(buffer.sizes() == flat_.sizes(), "unit ", name_, " has a buffer of shape ",
              flat_.sizes(), ", got one of shape ", buffer.sizes());
  const int64_t first = is_sharded() ? gather_->begin() : 0;
  const int64_t last = is_sharded() ? first + gather_->size() : numel_;
  const ParamSpec& spec = specs_.at(i);
  const int64_t begin = std::max(first, offsets_[i]);
  const int64_t end = std::min(last, offsets_[i] + spec.numel());
  if (begin >= end) {
    return std::nullopt;
  }
  return NamedSlice{spec.name, spec.shape, begin - offsets_[i],
                    buffer.narrow(0, begin - first, end - begin)};
}

void ParamUnit::assign(std::size_t i, const at::Tensor& whole) const {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(whole.sizes() == at::IntArrayRef(specs_.at(i).shape), "parameter ", specs_[i].name,
              " has shape ", specs_[i].shape, ", got ", whole.sizes());
  if (const auto slice = slice_of(flat_.detach(), i)) {
    const at::Tensor values = whole.reshape({-1});
    slice->values.copy_(values.narrow(0, slice->begin, slice->values.numel()));
  }
}

void ParamUnit::await_readers(const c10::Stream& stream) const {
  if (const auto read = std::exchange(being_read_, nullptr)) {
    read->make_wait(stream);
  }
}

at::Tensor ParamUnit::view(std::size_t i) const {
  TORCH_CHECK(!is_sharded(), "unit ", name_, " is sharded: it has slices, no whole parameters");
  TORCH_CHECK(!flat_.is_meta(), "unit ", name_, " does not hold its values: they are quantised");
  return view_of(flat_.detach(), i);
}

at::Tensor ParamUnit::view_of(const at::Tensor& buffer, std::size_t i) const {
  const ParamSpec& spec = specs_.at(i);
  TORCH_CHECK(buffer.dim() == 1 && buffer.numel() == numel_, "unit ", name_, " has ", numel_,
              " elements, got a buffer of shape ", buffer.sizes());
  return buffer.narrow(0, offsets_[i], spec.numel()).view(spec.shape);
}

}  // namespace ringside::engine
