// Collectives of device tensors through copies on the host: what a Gloo group needs so that several
// ranks can share one GPU in a test. Counts the same bytes as the communicator it wraps.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/mesh/process_groups.h"

namespace ringside::test {

class HostStagedCommunicator final : public sp::Communicator {
 public:
  // host: the communicator of the same ranks for CPU tensors.
  explicit HostStagedCommunicator(std::shared_ptr<sp::Communicator> host)
      : host_(std::move(host)) {}

  int64_t rank() const override { return host_->rank(); }
  int64_t size() const override { return host_->size(); }

 protected:
  std::unique_ptr<sp::Transfer> do_start_all_reduce(at::Tensor& tensor,
                                                    Reduction reduction) override {
    at::Tensor staged = tensor.cpu();
    std::unique_ptr<sp::Transfer> transfer;
    if (reduction == Reduction::kSum) {
      transfer = host_->start_all_reduce_sum(staged, kTag);
    } else {
      host_->all_reduce_max(staged, kTag);
    }
    return std::make_unique<StagedTransfer>(std::move(transfer), std::move(staged), tensor);
  }

  std::unique_ptr<sp::Transfer> do_start_all_to_all(
      at::Tensor& receive, at::Tensor& send, const std::vector<int64_t>& receive_counts,
      const std::vector<int64_t>& send_counts) override {
    at::Tensor staged = at::empty(receive.sizes(), receive.options().device(at::kCPU));
    auto transfer = host_->start_all_to_all(send.cpu(), send_counts, staged, receive_counts, kTag);
    return std::make_unique<StagedTransfer>(std::move(transfer), std::move(staged), receive);
  }

  std::unique_ptr<sp::Transfer> do_start_all_gather(at::Tensor& gathered,
                                                    const at::Tensor& tensor) override {
    at::Tensor staged = at::empty(gathered.sizes(), gathered.options().device(at::kCPU));
    auto transfer = host_->start_all_gather(tensor.cpu(), staged, kTag);
    return std::make_unique<StagedTransfer>(std::move(transfer), std::move(staged), gathered);
  }

  void do_broadcast(at::Tensor& tensor, int64_t root) override {
    at::Tensor staged = tensor.cpu();
    host_->broadcast(staged, root, kTag);
    tensor.copy_(staged);
  }

  std::unique_ptr<sp::Transfer> do_send_recv(const at::Tensor& send, int64_t to,
                                             at::Tensor& receive, int64_t from) override {
    at::Tensor staged = at::empty(receive.sizes(), receive.options().device(at::kCPU));
    auto transfer = host_->send_recv(send.cpu(), to, staged, from, kTag);
    return std::make_unique<StagedTransfer>(std::move(transfer), std::move(staged), receive);
  }

  std::vector<std::unique_ptr<sp::Transfer>> do_start_transfers(
      std::span<const sp::PointToPoint> transfers) override {
    std::vector<sp::PointToPoint> staged(transfers.begin(), transfers.end());
    for (sp::PointToPoint& one : staged) {
      one.tensor = one.kind == sp::PointToPoint::Kind::kSend
                       ? one.tensor.cpu()
                       : at::empty(one.tensor.sizes(), one.tensor.options().device(at::kCPU));
    }
    auto started = host_->start_transfers(staged, kTag);
    for (std::size_t i = 0; i < staged.size(); ++i) {
      started[i] = std::make_unique<StagedTransfer>(std::move(started[i]), staged[i].tensor,
                                                    transfers[i].tensor);
    }
    return started;
  }

 private:
  static constexpr const char* kTag = "staged";

  class StagedTransfer final : public sp::Transfer {
   public:
    StagedTransfer(std::unique_ptr<sp::Transfer> transfer, at::Tensor staged, at::Tensor receive)
        : transfer_(std::move(transfer)),
          staged_(std::move(staged)),
          receive_(std::move(receive)) {}

    void wait() override {
      if (transfer_) {  // null: done when it was started
        transfer_->wait();
      }
      receive_.copy_(staged_);
    }

   private:
    std::unique_ptr<sp::Transfer> transfer_;
    at::Tensor staged_;
    at::Tensor receive_;
  };

  std::shared_ptr<sp::Communicator> host_;
};

// A rank's communicators for attention, staged through the host.
inline sp::ProcessGroups host_staged(const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
  return sp::ProcessGroups(
      mesh,
      [&](sp::Axes axes) { return std::make_shared<HostStagedCommunicator>(comms.tensors(axes)); },
      [&](sp::Axes axes) { return comms.control(axes); });
}

}  // namespace ringside::test
