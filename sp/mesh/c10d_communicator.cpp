#include "sp/mesh/c10d_communicator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

namespace ringside::sp {
namespace {

class C10dTransfer final : public Transfer {
 public:
  C10dTransfer(c10::intrusive_ptr<c10d::Work> send, c10::intrusive_ptr<c10d::Work> receive,
               std::vector<at::Tensor> keep_alive)
      : send_(std::move(send)), receive_(std::move(receive)), keep_alive_(std::move(keep_alive)) {}
  C10dTransfer(const C10dTransfer&) = delete;
  C10dTransfer& operator=(const C10dTransfer&) = delete;

  // Waits, because the backend uses the buffers until both works are done.
  ~C10dTransfer() override {
    try {
      wait();
    } catch (const std::exception&) {
      // Reached only while another error unwinds; that error is reported.
    }
  }

  void wait() override {
    for (auto* work : {&receive_, &send_}) {
      if (auto pending = std::exchange(*work, nullptr)) {
        pending->wait();
      }
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> send_;
  c10::intrusive_ptr<c10d::Work> receive_;
  std::vector<at::Tensor> keep_alive_;
};

class C10dCommunicator final : public Communicator {
 public:
  explicit C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend)
      : backend_(std::move(backend)) {}

  int64_t rank() const override { return backend_->getRank(); }
  int64_t size() const override { return backend_->getSize(); }

 protected:
  std::unique_ptr<Transfer> do_start_all_reduce(at::Tensor& tensor, Reduction reduction) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = reduction == Reduction::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    return std::make_unique<C10dTransfer>(nullptr, backend_->allreduce(tensors, options),
                                          std::vector<at::Tensor>{tensor});
  }

  std::unique_ptr<Transfer> do_start_all_to_all(at::Tensor& receive, at::Tensor& send,
                                                const std::vector<int64_t>& receive_counts,
                                                const std::vector<int64_t>& send_counts) override {
    auto receive_splits = receive_counts;
    auto send_splits = send_counts;
    auto work = backend_->alltoall_base(receive, send, receive_splits, send_splits);
    return std::make_unique<C10dTransfer>(nullptr, std::move(work),
                                          std::vector<at::Tensor>{send, receive});
  }

  std::unique_ptr<Transfer> do_start_all_gather(at::Tensor& gathered,
                                                const at::Tensor& tensor) override {
    at::Tensor flat = gathered.view({-1});
    at::Tensor flat_input = tensor.view({-1});
    auto work = backend_->_allgather_base(flat, flat_input);
    return std::make_unique<C10dTransfer>(nullptr, std::move(work),
                                          std::vector<at::Tensor>{flat, flat_input});
  }

  void do_broadcast(at::Tensor& tensor, int64_t root) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    backend_->broadcast(tensors, options)->wait();
  }

  std::unique_ptr<Transfer> do_send_recv(const at::Tensor& send, int64_t to, at::Tensor& receive,
                                         int64_t from) override {
    // A running tag matches transfers, because every rank starts them in the same order.
    const int tag = next_tag_;
    next_tag_ = (next_tag_ + 1) % kMessageTags;
    c10::intrusive_ptr<c10d::Work> sending;
    c10::intrusive_ptr<c10d::Work> receiving;
    // NCCL runs the calls of one pair in order. Two ranks that both receive first would deadlock.
    const bool grouped =
        backend_->supportsCoalescing() && (receive.numel() > 0 || send.numel() > 0);
    if (grouped) {
      backend_->startCoalescing();
    }
    if (receive.numel() > 0) {
      std::vector<at::Tensor> tensors{receive};
      receiving = backend_->recv(tensors, static_cast<int>(from), tag);
    }
    if (send.numel() > 0) {
      std::vector<at::Tensor> tensors{send};
      sending = backend_->send(tensors, static_cast<int>(to), tag);
    }
    if (grouped) {
      sending = nullptr;
      receiving = backend_->endCoalescing();
    }
    return std::make_unique<C10dTransfer>(std::move(sending), std::move(receiving),
                                          std::vector<at::Tensor>{send, receive});
  }

  std::vector<std::unique_ptr<Transfer>> do_start_transfers(
      std::span<const PointToPoint> transfers) override {
    const bool grouped = backend_->supportsCoalescing();
    if (grouped) {
      backend_->startCoalescing();
    }
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (const PointToPoint& one : transfers) {
      std::vector<at::Tensor> tensors{one.tensor};
      const int peer = static_cast<int>(one.peer);
      // Above the tags of do_send_recv(). Both ends count the messages of their pair.
      const bool sends = one.kind == PointToPoint::Kind::kSend;
      int& message = (sends ? sent_to_ : received_from_)[peer];
      const int tag = kMessageTags + message;
      message = (message + 1) % kMessageTags;
      works.push_back(sends ? backend_->send(tensors, peer, tag)
                            : backend_->recv(tensors, peer, tag));
    }
    if (grouped) {
      std::fill(works.begin(), works.end(), backend_->endCoalescing());
    }
    std::vector<std::unique_ptr<Transfer>> started;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      started.push_back(std::make_unique<C10dTransfer>(
          nullptr, works[i], std::vector<at::Tensor>{transfers[i].tensor}));
    }
    return started;
  }

 private:
  static constexpr int kMessageTags = 1 << 20;

  c10::intrusive_ptr<c10d::Backend> backend_;
  int next_tag_ = 0;
  std::map<int, int> sent_to_, received_from_;  // messages so far, by peer
};

}  // namespace

std::shared_ptr<Communicator> make_c10d_communicator(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_shared<C10dCommunicator>(std::move(backend));
}

std::shared_ptr<Communicator> make_gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& group_name, int64_t rank,
                                                     int64_t size, const std::string& host,
                                                     std::chrono::milliseconds timeout) {
  if (size == 1) {
    return make_single_rank_communicator();
  }
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(host.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                                          : c10d::ProcessGroupGloo::createDeviceForHostname(host));
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(group_name, store);
  return make_c10d_communicator(c10::make_intrusive<c10d::ProcessGroupGloo>(
      prefixed, static_cast<int>(rank), static_cast<int>(size), options));
}

c10::intrusive_ptr<c10d::Store> make_tcp_store(const std::string& host, uint16_t port, int64_t rank,
                                               int64_t world_size,
                                               std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = rank == 0;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace ringside::sp
