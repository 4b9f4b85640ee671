// Groups of ranks that are threads of one process, over shared memory. Much cheaper than Gloo's
// sockets for tests that call thousands of small collectives. Sums are in rank order.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sp/mesh/process_groups.h"

namespace ringside::test {

// What ranks send each other. A message is a copy, so that its sender may go on.
// Thread safety: any thread.
class MemoryHub {
 public:
  // Group, number of the call in it, sending rank.
  using Key = std::tuple<std::string, int64_t, int64_t>;
  struct Message {
    at::Tensor values;
    std::vector<int64_t> counts = {};  // elements for each rank; empty: all for everyone
  };

  // timeout: of take().
  explicit MemoryHub(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // readers: how many ranks will take the message.
  void post(const Key& key, Message message, int64_t readers) {
    const std::lock_guard lock(mutex_);
    messages_.emplace(key, std::make_pair(std::move(message), readers));
    changed_.notify_all();
  }

  // Blocks: until the message is there.
  // Throws: std::runtime_error after the timeout, and when a rank has failed.
  Message take(const Key& key) {
    std::unique_lock lock(mutex_);
    const bool there = changed_.wait_for(
        lock, timeout_, [&] { return failed_ || messages_.find(key) != messages_.end(); });
    const auto found = messages_.find(key);
    if (found == messages_.end()) {
      throw std::runtime_error("rank " + std::to_string(std::get<2>(key)) + " of group " +
                               std::get<0>(key) +
                               (there ? " waits for a rank that failed" : " sent nothing in time"));
    }
    Message message = found->second.first;
    if (--found->second.second == 0) {
      messages_.erase(found);
    }
    return message;
  }

  // A rank ended with an error: wakes those that wait for it.
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::pair<Message, int64_t>> messages_;
  bool failed_ = false;
};

// Runs the receiving half of a call, once.
class MemoryTransfer final : public sp::Transfer {
 public:
  // receive: waits for the data and stores it.
  explicit MemoryTransfer(std::function<void()> receive) : receive_(std::move(receive)) {}
  MemoryTransfer(const MemoryTransfer&) = delete;
  MemoryTransfer& operator=(const MemoryTransfer&) = delete;
  ~MemoryTransfer() override {
    try {
      wait();
    } catch (const std::exception&) {
      // Reached only while another error unwinds.
    }
  }
  void wait() override {
    if (const auto receive = std::exchange(receive_, nullptr)) {
      const at::NoGradGuard data_only;
      receive();
    }
  }

 private:
  std::function<void()> receive_;
};

// Communicator of one rank of `group`. A transfer waits for its data in wait(), not when it is
// started.
// Throws: as MemoryHub::take, from wait() and from broadcast().
class MemoryCommunicator final : public sp::Communicator {
 public:
  // group: equal on its ranks, and no other group's.
  MemoryCommunicator(std::shared_ptr<MemoryHub> hub, std::string group, int64_t rank, int64_t size)
      : hub_(std::move(hub)), group_(std::move(group)), rank_(rank), size_(size) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

 protected:
  using Messages = std::vector<MemoryHub::Message>;  // of each rank

  std::unique_ptr<sp::Transfer> do_start_all_reduce(at::Tensor& tensor,
                                                    Reduction reduction) override {
    return exchange({tensor}, [tensor, reduction](const Messages& all) {
      at::Tensor result = tensor;
      result.copy_(all[0].values);
      for (std::size_t p = 1; p < all.size(); ++p) {
        reduction == Reduction::kSum ? result.add_(all[p].values)
                                     : at::maximum_out(result, result, all[p].values);
      }
    });
  }

  std::unique_ptr<sp::Transfer> do_start_all_to_all(
      at::Tensor& receive, at::Tensor& send, const std::vector<int64_t>& receive_counts,
      const std::vector<int64_t>& send_counts) override {
    return exchange({send, send_counts}, [receive, receive_counts, me = rank_](const auto& all) {
      const auto parts = receive.split_with_sizes(receive_counts);
      for (std::size_t p = 0; p < all.size(); ++p) {
        TORCH_CHECK(all[p].counts[me] == receive_counts[p], "rank ", p, " sent ", all[p].counts[me],
                    " elements, ", receive_counts[p], " were expected");
        parts[p].copy_(all[p].values.split_with_sizes(all[p].counts)[me]);
      }
    });
  }

  std::unique_ptr<sp::Transfer> do_start_all_gather(at::Tensor& gathered,
                                                    const at::Tensor& tensor) override {
    return exchange({tensor}, [gathered](const Messages& all) {
      const at::Tensor rows = gathered.view({static_cast<int64_t>(all.size()), -1});
      for (std::size_t p = 0; p < all.size(); ++p) {
        rows[static_cast<int64_t>(p)].copy_(all[p].values.view({-1}));
      }
    });
  }

  void do_broadcast(at::Tensor& tensor, int64_t root) override {
    const MemoryHub::Key key{group_ + "collective", collectives_++, root};
    if (rank_ == root) {
      hub_->post(key, {tensor.clone()}, size_ - 1);
    } else {
      tensor.copy_(hub_->take(key).values);
    }
  }

  std::unique_ptr<sp::Transfer> do_send_recv(const at::Tensor& send, int64_t to,
                                             at::Tensor& receive, int64_t from) override {
    const auto name = [&](int64_t target) { return group_ + "to " + std::to_string(target); };
    const int64_t call = transfers_++;
    if (send.numel() > 0) {
      hub_->post({name(to), call, rank_}, {send.clone()}, 1);
    }
    const MemoryHub::Key key{name(rank_), call, from};
    return std::make_unique<MemoryTransfer>([this, key, receive] {
      if (receive.numel() > 0) {
        receive.copy_(hub_->take(key).values.view(receive.sizes()));
      }
    });
  }

  std::vector<std::unique_ptr<sp::Transfer>> do_start_transfers(
      std::span<const sp::PointToPoint> transfers) override {
    std::vector<std::unique_ptr<sp::Transfer>> started;
    for (const sp::PointToPoint& one : transfers) {
      const auto name = [&](int64_t target) {
        return group_ + "message to " + std::to_string(target);
      };
      if (one.kind == sp::PointToPoint::Kind::kSend) {
        hub_->post({name(one.peer), sent_[one.peer]++, rank_}, {one.tensor.detach().clone()}, 1);
        started.push_back(std::make_unique<MemoryTransfer>([] {}));
        continue;
      }
      const MemoryHub::Key key{name(rank_), received_[one.peer]++, one.peer};
      started.push_back(std::make_unique<MemoryTransfer>([hub = hub_, key, to = one.tensor] {
        const at::Tensor values = hub->take(key).values;
        TORCH_CHECK(values.sizes() == to.sizes() && values.scalar_type() == to.scalar_type(),
                    "rank ", std::get<2>(key), " sent ", values.scalar_type(), " ", values.sizes(),
                    ", ", to.scalar_type(), " ", to.sizes(), " was expected");
        at::Tensor(to).copy_(values);
      }));
    }
    return started;
  }

 private:
  // Sends `message` to every rank, and calls `receive` with those of all when they are there.
  template <class Receive>
  std::unique_ptr<sp::Transfer> exchange(MemoryHub::Message message, Receive receive) {
    const int64_t call = collectives_++;
    message.values = message.values.detach().clone();
    const std::string name = group_ + "collective";
    hub_->post({name, call, rank_}, std::move(message), size_);
    return std::make_unique<MemoryTransfer>([hub = hub_, name, call, size = size_, receive] {
      Messages all;
      for (int64_t p = 0; p < size; ++p) {
        all.push_back(hub->take({name, call, p}));
      }
      receive(all);
    });
  }

  std::shared_ptr<MemoryHub> hub_;
  std::string group_;
  int64_t rank_;
  int64_t size_;
  int64_t collectives_ = 0;
  int64_t transfers_ = 0;
  std::map<int64_t, int64_t> sent_, received_;  // messages so far, by peer
};

// The groups of one rank over a hub that all ranks share. more: axes of further groups.
// Blocks: never; a rank that calls late is waited for by the first collective.
inline sp::ProcessGroups memory_groups(const sp::Mesh& mesh, const std::shared_ptr<MemoryHub>& hub,
                                       const std::vector<sp::Axes>& more) {
  const auto connect = [&](sp::Axes axes) -> std::shared_ptr<sp::Communicator> {
    if (mesh.size(axes) == 1) {
      return sp::make_single_rank_communicator();
    }
    return std::make_shared<MemoryCommunicator>(hub, sp::group_name(mesh, axes),
                                                mesh.coordinate(axes), mesh.size(axes));
  };
  return sp::ProcessGroups(mesh, connect, nullptr, c10::Device(c10::kCPU), more);
}

}  // namespace ringside::test
