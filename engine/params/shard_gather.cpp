#include "engine/params/shard_gather.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace ringside::engine {
namespace {

constexpr const char* kGatherTag = "parameters";

// The tensor's memory under a version counter of its own, so that writing to it is no change of
// what autograd has saved.
at::Tensor unversioned_alias(const at::Tensor& tensor) {
  at::Tensor alias = tensor.detach();
  alias.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
  return alias;
}

}  // namespace

ShardGather::ShardGather(const ComputeContext& context, int64_t numel)
    : context_(context), numel_(numel), range_(own_range(sharding(), numel)) {}

at::Tensor ShardGather::on_device(const at::Tensor& shard_c, at::ScalarType dtype) {
  const at::Tensor shard = shard_c.detach();
  if (!context_.host_master || dtype != context_.compute) {
    return shard.to(context_.device, dtype);
  }
  if (device_values_.defined()) {
    return device_values_;
  }
  if (stale_) {
    if (!host_values_.defined()) {
      host_values_ = at::empty({range_.stored}, context_.host_options(dtype));
    }
    host_values_.copy_(shard);
    stale_ = false;
  }
  const at::Tensor values = host_values_.to(context_.device, dtype, /*non_blocking=*/true);
  if (!context_.host_values) {
    device_values_ = values;
  }
  return values;
}

ShardGather::Gathering ShardGather::start(const at::Tensor& sent) const {
  Gathering gathering;
  gathering.padded = at::empty({sharding().shard->size() * range_.stored}, sent.options());
  gathering.transfer = sharding().shard->start_all_gather(sent, gathering.padded, kGatherTag);
  return gathering;
}

at::Tensor ShardGather::finish(Gathering gathering) const {
  gathering.transfer->wait();
  return gathering.padded.narrow(0, 0, numel_);
}

void ShardGather::prefetch(const at::Tensor& shard_c, at::ScalarType dtype) {
  if (sharding().prefetch && !kept_.defined() && !prefetched_.transfer) {
    const at::NoGradGuard no_grad;
    prefetched_ = start(on_device(shard_c, dtype));
  }
}

at::Tensor ShardGather::whole(const at::Tensor& shard_c, at::ScalarType dtype) {
  if (kept_.defined() && kept_.scalar_type() == dtype) {
    return kept_;
  }
  Gathering gathering = std::exchange(prefetched_, {});
  if (!gathering.transfer || gathering.padded.scalar_type() != dtype) {
    const at::NoGradGuard no_grad;
    gathering = start(on_device(shard_c, dtype));
  }
  at::Tensor whole = finish(std::move(gathering));
  if (keeps_whole()) {
    kept_ = whole;
  }
  return whole;
}

at::Tensor ShardGather::gather_once(const at::Tensor& shard_c) const {
  const at::NoGradGuard no_grad;
  return finish(start(shard_c.detach().to(context_.device)));
}

std::unique_ptr<sp::Transfer> ShardGather::start_refill(const at::Tensor& shard_c,
                                                        const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  c10::StorageImpl* storage = whole.storage().unsafeGetStorageImpl();
  const auto bytes =
      static_cast<std::size_t>(sharding().shard->size() * range_.stored) * whole.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
  at::Tensor padded = unversioned_alias(whole).as_strided(
      {sharding().shard->size() * range_.stored}, {1}, /*storage_offset=*/0);
  return sharding().shard->start_all_gather(on_device(shard_c, whole.scalar_type()), padded,
                                            kGatherTag);
}

void ShardGather::invalidate() {
  prefetched_ = {};
  kept_.reset();
  device_values_.reset();
  stale_ = true;
}

void release_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

}  // namespace ringside::engine
