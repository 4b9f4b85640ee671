#include "engine/params/unit_storage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <iterator>
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
  UnitPart part{parts.ranks, {}};
  for (std::size_t p = 0; p < ends.size(); ++p) {
    part.sizes.push_back(ends[p] - (p == 0 ? 0 : ends[p - 1]));
  }
  part.begin = ends[rank] - part.sizes[rank];
  part.numel = part.sizes[rank];
  return part;
}

// Of a layout that tensor-parallel ranks divide.
UnitPart own_part(const UnitLayout& layout, const ComputeContext& context) {
  const TensorPlace place = tensor_place(context);
  TORCH_CHECK(place.ranks == layout.num_parts(), "unit ", layout.name(), " is cut into ",
              layout.num_parts(), " parts, for ", place.ranks, " tensor-parallel ranks");
  UnitPart part{context.tensor->ranks, {}, place.rank};
  for (int64_t p = 0; p < place.ranks; ++p) {
    part.sizes.push_back(layout.part_numel(p));
  }
  part.numel = part.sizes[place.rank];
  return part;
}

}  // namespace

UnitStorage::UnitStorage(UnitLayout layout, const ComputeContext& context,
                         std::optional<UnitParts> parts)
    : layout_(std::move(layout)), context_(context) {
  part_.numel = layout_.numel();
  if (parts || layout_.num_parts() > 1) {
    TORCH_CHECK(context.sharding, "unit ", layout_.name(),
                " is in parts and its context has no sharding");
    TORCH_CHECK(!parts || layout_.num_parts() == 1, "unit ", layout_.name(),
                " is cut into parts in two ways");
    part_ = parts ? own_part(layout_, *parts) : own_part(layout_, context);
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
    std::ranges::move(slices_of(buffer, i), std::back_inserter(slices));
  }
  return slices;
}

std::vector<NamedSlice> UnitStorage::slices_of(const at::Tensor& buffer, std::size_t i) const {
  TORCH_CHECK(buffer.sizes() == flat_.sizes(), "unit ", layout_.name(), " has a buffer of shape ",
              flat_.sizes(), ", got one of shape ", buffer.sizes());
  const int64_t first = part_.begin + (shard_ ? shard_->begin : 0);
  const int64_t numel = shard_ ? shard_->size : part_.numel;
  return layout_.slices_of_run(i, part_.of_layout, first, buffer.narrow(0, 0, numel));
}

at::Tensor UnitStorage::view(std::size_t i) const {
  TORCH_CHECK(is_whole(), "unit ", layout_.name(),
              " is sharded: it has slices, no whole parameters");
  TORCH_CHECK(!flat_.is_meta(), "unit ", layout_.name(),
              " does not hold its values: they are quantised");
  return layout_.view_of(flat_.detach(), i);
}

sp::Communicator* UnitStorage::holders() const {
  if (!is_whole()) {
    return context_.sharding->replicas.get();
  }
  return context_.tensor == nullptr ? nullptr : context_.tensor->everybody.get();
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
  const NamedSlice all{spec.name, spec.shape, 0, whole.reshape({-1})};
  for (const NamedSlice& slice : storage.slices_of(storage.flat().detach(), i)) {
    copy_shared(all, slice);
  }
}

}  // namespace ringside::engine
