#include "engine/params/param_unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
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
        {holder->unit.part().numel}, {0},
        at::TensorOptions().dtype(shard_c.scalar_type()).device(holder->unit.context().device));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto capsule = ctx->saved_data["unit"].toCapsule();
    static_cast<const UnitHolder&>(*capsule).unit.receive_gradient(std::move(grads[0]));
    return {at::Tensor(), at::Tensor()};
  }
};

UnitPart own_part(const std::string& name, const UnitParts& parts, int64_t numel) {
  const std::vector<int64_t>& ends = parts.ends;
  const int64_t rank = parts.ranks->rank(), ranks = parts.ranks->size();
  const bool ascend =
      std::adjacent_find(ends.begin(), ends.end(), std::greater_equal<>()) == ends.end();
  TORCH_CHECK(static_cast<int64_t>(ends.size()) == ranks && ascend && ends.front() > 0 &&
                  ends.back() == numel,
              "unit ", name, " of ", numel, " elements for ", ranks, " ranks in parts that end at ",
              ends, "; expected one part of at least one element for each rank");
  UnitPart part{parts.ranks, {0}};
  part.begins.insert(part.begins.end(), ends.begin(), ends.end());
  part.begin = part.begins[rank];
  part.numel = part.begins[rank + 1] - part.begin;
  return part;
}

std::vector<at::Tensor> matrices_of(const std::string& unit, const at::Tensor& flat,
                                    const UnitShapes& cut) {
  std::vector<int64_t> sizes;  // elements of each matrix in a row
  int64_t row = 0;
  for (const std::vector<int64_t>& shape : cut.shapes) {
    sizes.push_back(product(shape) / cut.rows);
    row += sizes.back();
  }
  TORCH_CHECK(row * cut.rows == flat.numel(), "unit ", unit, " holds ", flat.numel(),
              " elements, the shapes asked for take ", row * cut.rows);
  std::vector<at::Tensor> matrices = cut.rows == 1
                                         ? flat.split_with_sizes(sizes)
                                         : flat.view({cut.rows, row}).split_with_sizes(sizes, 1);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    matrices[i] = matrices[i].view(cut.shapes[i]);
  }
  return matrices;
}

}  // namespace

int64_t ParamSpec::numel() const { return product(shape); }

at::ScalarType widened_dtype(const ParamSpec& spec, at::ScalarType dtype) {
  return spec.in_fp32 ? at::promote_types(dtype, at::kFloat) : dtype;
}

ParamUnit::ParamUnit(std::string name, std::vector<ParamSpec> specs, const ComputeContext& context,
                     std::optional<UnitParts> parts)
    : name_(std::move(name)), context_(context), specs_(std::move(specs)) {
  for (const ParamSpec& spec : specs_) {
    offsets_.push_back(numel_);
    numel_ += spec.numel();
  }
  part_.numel = numel_;
  if (parts) {
    TORCH_CHECK(context.sharding, "unit ", name_, " is in parts and its context has no sharding");
    part_ = own_part(name_, *parts, numel_);
  }
  int64_t local = part_.numel;
  TORCH_CHECK(context.sharding || !context.host_master,
              "a unit with master weights in host memory needs a sharding, if only over one rank");
  if (context.sharding && (context.sharding->shard->size() > 1 || context.host_master)) {
    gather_ = std::make_unique<ShardGather>(context, part_.numel);
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
  flat_ =
      at::empty({part_.numel}, at::TensorOptions().dtype(flat_.scalar_type()).device(at::kMeta));
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
  UnitShapes cut{compute_dtype, {}};
  for (const ParamSpec& spec : specs_) {
    cut.shapes.push_back(spec.shape);
  }
  return materialize(cut);
}

std::vector<Weight> ParamUnit::materialize(const UnitShapes& cut) const {
  const bool casts = is_sharded() || cut.dtype != flat_.scalar_type();
  at::Tensor leaf = flat_;
  if (is_sharded()) {
    open_gradients_ += at::GradMode::is_enabled() && flat_.requires_grad() ? 1 : 0;
    leaf = WholeLeaf::apply(flat_, c10::make_intrusive<UnitHolder>(*this));
  }
  const std::vector<at::Tensor> leaves = matrices_of(name_, leaf, cut);
  if (!casts) {
    return {leaves.begin(), leaves.end()};
  }
  const std::vector<at::Tensor> values = matrices_of(
      name_, is_sharded() ? gather_->whole(flat_, cut.dtype) : flat_.detach().to(cut.dtype), cut);
  std::vector<Weight> weights;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    weights.emplace_back(values[i], leaves[i]);
  }
  return weights;
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
  const at::Tensor part = is_sharded() && gather_->sharding().shard->size() > 1
                              ? gather_->gather_once(flat_)
                              : flat_.detach();
  if (part_.ranks == nullptr) {
    return part;
  }
  std::vector<int64_t> numel_of;
  for (std::size_t p = 1; p < part_.begins.size(); ++p) {
    numel_of.push_back(part_.begins[p] - part_.begins[p - 1]);
  }
  return part_.ranks->all_gather_rows(part.to(context_.device), numel_of, "parameters");
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
  const int64_t first = part_.begin + (is_sharded() ? gather_->begin() : 0);
  const int64_t last = first + (is_sharded() ? gather_->size() : part_.numel);
  const ParamSpec& spec = specs_.at(i);
  const int64_t begin = std::max(first, offsets_[i]);
  const int64_t end = std::min(last, offsets_[i] + spec.numel());
  if (begin >= end) {
    return std::nullopt;
  }
  return NamedSlice{spec.name, spec.shape, begin - offsets_[i],
                    buffer.narrow(0, begin - first, end - begin)};
}

void ParamUnit::await_readers(const c10::Stream& stream) const {
  if (const auto read = std::exchange(being_read_, nullptr)) {
    read->make_wait(stream);
  }
}

at::Tensor ParamUnit::view(std::size_t i) const {
  TORCH_CHECK(is_whole(*this), "unit ", name_, " is sharded: it has slices, no whole parameters");
  TORCH_CHECK(!flat_.is_meta(), "unit ", name_, " does not hold its values: they are quantised");
  return view_of(flat_.detach(), i);
}

at::Tensor ParamUnit::view_of(const at::Tensor& buffer, std::size_t i) const {
  const ParamSpec& spec = specs_.at(i);
  TORCH_CHECK(buffer.dim() == 1 && buffer.numel() == numel_, "unit ", name_, " has ", numel_,
              " elements, got a buffer of shape ", buffer.sizes());
  return buffer.narrow(0, offsets_[i], spec.numel()).view(spec.shape);
}

bool is_whole(const ParamUnit& unit) {
  return !unit.is_sharded() && unit.part().numel == unit.numel();
}

sp::Communicator* holders_of(const ParamUnit& unit) {
  return is_whole(unit) ? nullptr : unit.context().sharding->replicas.get();
}

std::vector<sp::Communicator*> spread_of(const ParamUnit& unit) {
  std::vector<sp::Communicator*> groups;
  if (unit.is_sharded()) {
    groups.push_back(unit.context().sharding->shard.get());
  }
  if (unit.part().ranks != nullptr) {
    groups.push_back(unit.part().ranks.get());
  }
  return groups;
}

void assign(const ParamUnit& unit, std::size_t i, const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  const ParamSpec& spec = unit.specs().at(i);
  TORCH_CHECK(whole.sizes() == at::IntArrayRef(spec.shape), "parameter ", spec.name, " has shape ",
              spec.shape, ", got ", whole.sizes());
  if (const auto slice = unit.slice_of(unit.flat().detach(), i)) {
    const at::Tensor values = whole.reshape({-1});
    slice->values.copy_(values.narrow(0, slice->begin, slice->values.numel()));
  }
}

}  // namespace ringside::engine
