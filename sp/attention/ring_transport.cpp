#include "sp/attention/ring_transport.h"

#include <ATen/ATen.h>

#include <utility>

namespace ringside::sp {
namespace {

at::Tensor empty_rows(int64_t rows, const at::Tensor& like) {
  return at::empty({rows, like.size(1), like.size(2)}, like.options());
}

}  // namespace

RingTransport::RingTransport(const at::Tensor& kv_S2kD, const PreparedPlan& prepared,
                             Communicator& ring)
    : plan_(prepared.plan()), ring_(ring), current_(kv_S2kD.contiguous()) {}

std::unique_ptr<Transfer> RingTransport::pass_on(const at::Tensor& send, at::Tensor& receive,
                                                 const char* tag) {
  return ring_.send_recv(send, next_rank(), receive, previous_rank(), tag);
}

at::Tensor RingTransport::load(int64_t ring_step) {
  if (kv_transfer_) {
    kv_transfer_->wait();
    kv_transfer_.reset();
    current_ = std::move(next_);
  }
  if (ring_step + 1 < num_ring_steps()) {
    next_ = empty_rows(plan_.steps[ring_step + 1].kv_rows, current_);
    kv_transfer_ = pass_on(take_rows(current_, plan_.steps[ring_step].pass_on), next_, "ring_kv");
  }
  return current_;
}

void RingTransport::add_gradient(int64_t ring_step, at::Tensor dkv_g2cD) {
  if (ring_step == 0) {
    own_gradient_ = std::move(dkv_g2cD);
    return;
  }
  if (gradient_transfer_) {  // the gradient sum of the ranks that held this KV before
    gradient_transfer_->wait();
    add_rows(dkv_g2cD, plan_.steps[ring_step].gradient_received, incoming_gradient_);
  }
  const bool last = ring_step + 1 == num_ring_steps();
  const auto& places = last ? plan_.gradient_home : plan_.steps[ring_step + 1].gradient_received;
  incoming_gradient_ = empty_rows(total_size(places), dkv_g2cD);
  gradient_transfer_ = pass_on(dkv_g2cD, incoming_gradient_, "ring_kv_grad");
}

at::Tensor RingTransport::finish() {
  if (gradient_transfer_) {
    gradient_transfer_->wait();
    gradient_transfer_.reset();
    add_rows(own_gradient_, plan_.gradient_home, incoming_gradient_);
  }
  return own_gradient_;
}

}  // namespace ringside::sp
