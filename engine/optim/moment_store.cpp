#include "engine/optim/moment_store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "engine/device/side_stream.h"

namespace ringside::engine {
namespace {

c10::Stream computing_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Memory of the transfer stream that the computing stream uses too.
void use_on(const c10::Stream& stream, const Moments& moments) {
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  guard.recordDataPtrOnStream(moments.exp_avg.storage().data_ptr(), stream);
  guard.recordDataPtrOnStream(moments.exp_avg_sq.storage().data_ptr(), stream);
}

const ParamUnit& first_of(const std::vector<ParamUnit*>& units) {
  TORCH_CHECK(!units.empty(), "moments: no parameters to train");
  return *units.front();
}

}  // namespace

MomentStore::MomentStore(const std::vector<ParamUnit*>& units, const std::vector<int64_t>& seconds)
    : units_(units), returned_(first_of(units).storage().context().device.type()) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const at::TensorOptions options = units_[u]->storage().context().moment_options();
    stored_.push_back(
        {at::zeros(units_[u]->flat().sizes(), options), at::zeros({seconds.at(u)}, options)});
  }
  borrowed_.resize(units_.size());
  const ParamUnit& first = *units_.front();
  if (stored_.front().exp_avg.device() != first.flat().device()) {
    stream_ = make_side_stream(first.flat().device());
  }
}

MomentStore::Staged MomentStore::bring(std::size_t u) const {
  const c10::Device device = stream_->device();
  Staged staged{u, {}, DeviceEvent(device.type())};
  const c10::StreamGuard on_transfer_stream(*stream_);
  staged.moments = {stored_[u].exp_avg.to(device, /*non_blocking=*/true),
                    stored_[u].exp_avg_sq.to(device, /*non_blocking=*/true)};
  staged.arrived.record(*stream_);
  return staged;
}

Moments MomentStore::borrow(std::size_t u) {
  if (!stream_) {
    return stored_[u];
  }
  const at::NoGradGuard no_grad;
  if (!next_ || next_->unit != u) {
    next_ = bring(u);
  }
  const c10::Stream computing = computing_stream(stream_->device());
  next_->arrived.make_wait(computing);
  use_on(computing, next_->moments);
  borrowed_[u] = std::move(next_->moments);
  next_.reset();
  if (u + 1 < units_.size()) {
    next_ = bring(u + 1);
  }
  return *borrowed_[u];
}

void MomentStore::give_back(std::size_t u) {
  if (!stream_) {
    return;
  }
  const at::NoGradGuard no_grad;
  DeviceEvent updated(stream_->device_type());
  updated.record(computing_stream(stream_->device()));
  updated.make_wait(*stream_);
  const Moments from = *std::exchange(borrowed_[u], std::nullopt);
  const c10::StreamGuard on_transfer_stream(*stream_);
  stored_[u].exp_avg.copy_(from.exp_avg, /*non_blocking=*/true);
  stored_[u].exp_avg_sq.copy_(from.exp_avg_sq, /*non_blocking=*/true);
  returned_.record(*stream_);
}

const Moments& MomentStore::stored(std::size_t u) const {
  if (stream_) {
    returned_.synchronize();
  }
  return stored_[u];
}

}  // namespace ringside::engine
