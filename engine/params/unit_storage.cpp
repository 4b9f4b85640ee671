#include "engine/params/unit_storage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace ringside::engine {
namespace {

UnitPart own_part(const UnitLayout& layout, const UnitParts& parts) {
  const std::vector<int64_t>& ends = parts.ends;
  const int64_t rank = parts.ranks->rank(), ranks = parts.ranks->size();
  const bool ascend =
      std::adjacent_find(ends.begin(), ends.end(), std::greater_equal<>()) == ends.end();
  TORCH_CHECK(static_cast<int64_t>(ends.size()) == ranks && ascend && ends.front() > 0 &&
                  ends.back() == layout.numel(),
              "unit ", layout.name(), " of ", layout.numel(), " elements for ", ranks,
              " ranks in parts that end at ", ends,
              "; expected one part of at least one element for each rank");
  UnitPart part{parts.ranks, {0}};
  part.begins.insert(part.begins.end(), ends.begin(), ends.end());
  part.begin = part.begins[rank];
  part.numel = part.begins[rank + 1] - part.begin;
  return part;
}

}  // namespace

UnitStorage::UnitStorage(UnitLayout layout, const ComputeContext& context,
                         std::optional<UnitParts> parts)
    : layout_(std::move(layout)), context_(context) {
  part_.numel = layout_.numel();
  if (parts) {
    TORCH_CHECK(context.sharding, "unit ", layout_.name(),
                " is in parts and its context has no sharding");
    part_ = own_part(layout_, *parts);
  }
  TORCH_CHECK(context.sharding || !context.host_master,
              "a unit with master weights in host memory needs a sharding, if only over one rank");
  if (context.sharding && (context.sharding->shard->size() > 1 || context.host_master)) {
    shard_ = own_range(*context.sharding, part_.numel);
  }
  flat_ = at::zeros({shard_ ? shard_->stored : part_.numel}, context.master_options())
              .set_requires_grad(true);
}

bool UnitStorage::is_cut() const { return shard_ && context_.sharding->shard->size() > 1; }

void UnitStorage::freeze(at::ScalarType dtype) {
  const std::vector<ParamSpec>& specs = layout_.specs();
  flat_ = flat_.detach().to(specs.empty() ? dtype : widened_dtype(specs.front(), dtype));
}

void UnitStorage::release() {
  shard_.reset();
  flat_ =
      at::empty({part_.numel}, at::TensorOptions().dtype(flat_.scalar_type()).device(at::kMeta));
}

at::Tensor UnitStorage::grad() const {
  at::Tensor& grad = flat_.mutable_grad();
  if (!grad.defined()) {
    grad = at::zeros(flat_.sizes(), context_.master_options());
  }
  return grad;
}

void UnitStorage::zero_grad() { flat_.mutable_grad().reset(); }

std::vector<NamedSlice> UnitStorage::slices_of(const at::Tensor& buffer) const {
  std::vector<NamedSlice> slices;
  for (std::size_t i = 0; i < layout_.specs().size(); ++i) {
    if (auto slice = slice_of(buffer, i)) {
      slices.push_back(std::move(*slice));
    }
  }
  return slices;
}

std::optional<NamedSlice> UnitStorage::slice_of(const at::Tensor& buffer, std::size_t i) const {
  TORCH_CHECK(buffer.sizes() == flat_.sizes(), "unit ", layout_.name(), " has a buffer of shape ",
              flat_.sizes(), ", got one of shape ", buffer.sizes());
  const int64_t first = part_.begin + (shard_ ? shard_->begin : 0);
  const int64_t last = first + (shard_ ? shard_->size : part_.numel);
  const UnitLayout::Range range = layout_.range(i);
  const int64_t begin = std::max(first, range.offset);
  const int64_t end = std::min(last, range.offset + range.numel);
  if (begin >= end) {
    return std::nullopt;
  }
  const ParamSpec& spec = layout_.specs()[i];
  return NamedSlice{spec.name, spec.shape, begin - range.offset,
                    buffer.narrow(0, begin - first, end - begin)};
}

at::Tensor UnitStorage::view(std::size_t i) const {
  TORCH_CHECK(is_whole(), "unit ", layout_.name(),
              " is sharded: it has slices, no whole parameters");
  TORCH_CHECK(!flat_.is_meta(), "unit ", layout_.name(),
              " does not hold its values: they are quantised");
  return layout_.view_of(flat_.detach(), i);
}

sp::Communicator* UnitStorage::holders() const {
  return is_whole() ? nullptr : context_.sharding->replicas.get();
}

std::vector<sp::Communicator*> UnitStorage::spread() const {
  std::vector<sp::Communicator*> groups;
  if (is_gathered()) {
    groups.push_back(context_.sharding->shard.get());
  }
  if (part_.ranks != nullptr) {
    groups.push_back(part_.ranks.get());
  }
  return groups;
}

void assign(const UnitStorage& storage, std::size_t i, const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  const ParamSpec& spec = storage.layout().specs().at(i);
  TORCH_CHECK(whole.sizes() == at::IntArrayRef(spec.shape), "parameter ", spec.name, " has shape ",
              spec.shape, ", got ", whole.sizes());
  if (const auto slice = storage.slice_of(storage.flat().detach(), i)) {
    const at::Tensor values = whole.reshape({-1});
    slice->values.copy_(values.narrow(0, slice->begin, slice->values.numel()));
  }
}

}  // namespace ringside::engine
